//! The `filter` of lists.

use codeq_core::read::ListQuery;
use codeq_server::service::filter;

/// A filter is accepted or refused, with the same outcome each time.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (mut one, mut two) = (ListQuery::default(), ListQuery::default());
    assert_eq!(filter::apply(text, &mut one), filter::apply(text, &mut two));
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
    let _ = filter::moment(text);
}

pub fn seeds() -> Vec<Vec<u8>> {
    let filters = [
        "worker=w-1",
        "created>2026-01-31T00:00:00Z created<=2026-02-01T00:00:00.123+02:00",
        r#"error~"connection \"refused\"" worker=x"#,
        "2026-01-31T08:00:00Z",
    ];
    filters.map(|text| text.as_bytes().to_vec()).to_vec()
}
