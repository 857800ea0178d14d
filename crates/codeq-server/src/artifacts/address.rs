//! The download URL of a stored artifact, and the key of its object.
//!
//! A stored result holds only the names and URLs of its artifacts, so the URL encodes the object's version
//! (which upload, and which artifact of it), its content type, and the digest of its bytes. A download
//! request is never trusted for these: they come from the URL in the stored result.

use codeq_core::id::TaskId;
use object_store::path::Path;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use super::DEFAULT_TYPE;

/// Path prefix of downloads.
pub(super) const ROUTE: &str = "/v1/codeq/artifacts/";
/// Longest content type, in bytes.
const TYPE_BYTES_MAX: usize = 255;

/// An object that belongs to a task's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Upload id, fresh for every submit, so that a worker that lost its task overwrites nothing.
    pub upload: u128,
    /// Index of the artifact within the upload.
    pub index: usize,
    /// Media type to serve the object with.
    pub content_type: String,
    /// SHA-256 of the bytes, in lower-case hex.
    pub digest: String,
}

impl Stored {
    /// The object's key.
    pub fn key(&self, id: TaskId) -> Path {
        key(id, self.upload, self.index)
    }

    /// The download URL.
    pub fn url(&self, public: &str, id: TaskId, name: &str) -> String {
        let Stored { upload, index, content_type, digest } = self;
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("v", &format!("{upload:032x}-{index}"))
            .append_pair("type", content_type)
            .append_pair("sha256", digest)
            .finish();
        format!("{public}{ROUTE}{id}/{}?{query}", escaped(name))
    }

    /// Parses a URL from this task's result. `None` if the artifact is stored elsewhere.
    pub fn parse(id: TaskId, url: &str) -> Option<Stored> {
        // Fast path: most results have no artifacts of ours, and every task removal checks.
        if !url.contains(ROUTE) {
            return None;
        }
        let url = Url::parse(url).ok()?;
        let (_, rest) = url.path().split_once(ROUTE)?;
        if rest.split_once('/')?.0 != id.to_string() {
            return None;
        }
        let find =
            |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, text)| text);
        let version = find("v")?;
        let (upload, index) = version.split_once('-')?;
        let content_type = find("type").filter(|text| is_content_type(text));
        Some(Stored {
            upload: parse_hex(upload)?,
            index: parse_index(index)?,
            content_type: content_type.map_or_else(|| DEFAULT_TYPE.to_owned(), Into::into),
            digest: find("sha256").filter(|text| is_hex(text, 64))?.into_owned(),
        })
    }
}

/// Percent-encodes text for a path segment or a file name in a header. Not `url::Url`, which treats
/// dots as directories.
pub fn escaped(text: &str) -> String {
    const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(text, &RESERVED).to_string()
}

/// The key of an object.
pub fn key(id: TaskId, upload: u128, index: usize) -> Path {
    Path::from(format!("{id}/{upload:032x}/{index}"))
}

/// Parses a key; `None` if this server did not create it.
pub fn parse_key(key: &Path) -> Option<(TaskId, u128, usize)> {
    let mut parts = key.as_ref().split('/');
    let (id, upload, index) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    Some((id.parse().ok()?, parse_hex(upload)?, parse_index(index)?))
}

/// Whether the text is a media type, with or without parameters, that fits in a header.
pub fn is_content_type(text: &str) -> bool {
    let token = |text: &str| {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
        !text.is_empty() && text.bytes().all(fine)
    };
    let media = text.split(';').next().unwrap_or_default().trim_ascii_end();
    text.len() <= TYPE_BYTES_MAX
        && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
        && media.split_once('/').is_some_and(|(kind, sub)| token(kind) && token(sub))
}

fn parse_hex(text: &str) -> Option<u128> {
    if is_hex(text, 32) { u128::from_str_radix(text, 16).ok() } else { None }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn parse_index(text: &str) -> Option<usize> {
    text.parse().ok().filter(|index: &usize| index.to_string() == text)
}

#[cfg(test)]
mod tests {
    use codeq_core::keys::Seq;

    use super::*;

    fn stored() -> Stored {
        let content_type = "text/plain; charset=\"utf-8\"".to_owned();
        Stored { upload: 0xabc, index: 7, content_type, digest: "5a".repeat(32) }
    }

    #[test]
    fn a_url_identifies_its_object() {
        let id = TaskId::new(Seq(5), 9);
        for name in ["a", "a b", "..a", "\"q\"", "ü?#%/&=", "x".repeat(255).as_str()] {
            for public in ["http://127.0.0.1:8080", "https://example.com/queue"] {
                let url = stored().url(public, id, name);
                assert_eq!(Stored::parse(id, &url), Some(stored()), "{url}");
                assert!(url.is_ascii() && url.len() < 2_048, "{url}");
                assert_eq!(Stored::parse(TaskId::new(Seq(6), 9), &url), None, "of another task");
            }
        }
        let key = stored().key(id);
        assert_eq!(parse_key(&key), Some((id, 0xabc, 7)));
        assert_eq!(key.as_ref(), format!("{id}/00000000000000000000000000000abc/7"));
    }

    #[test]
    fn other_urls_and_keys_are_not_ours() {
        let id = TaskId::new(Seq(5), 9);
        let good = stored().url("http://x", id, "n");
        for (from, to) in [
            ("abc-7", "ABC-7"),
            ("-7", "-07"),
            ("-7", "-+7"),
            ("v=0", "v="),
            ("5a&", "&"),
            ("artifacts", "tasks"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert!(bad == good || Stored::parse(id, &bad).is_none(), "{bad}");
        }
        for bad in ["s3://bucket/n", "", "http://x/v1/codeq/artifacts/", "/v1/codeq/artifacts/a/b"]
        {
            assert_eq!(Stored::parse(id, bad), None, "{bad}");
        }
        for bad in ["a", "a/b/c", &format!("{id}/1/0"), &format!("{id}/{:032x}/0/1", 1)] {
            assert_eq!(parse_key(&Path::from(bad)), None, "{bad}");
        }
    }

    #[test]
    fn only_valid_content_types_are_accepted() {
        let long = format!("text/{}", "x".repeat(251));
        for good in
            ["text/html", "application/vnd.a+json", "a/b; c=d", "text/plain;charset=\"x y\""]
        {
            assert!(is_content_type(good), "{good}");
        }
        for bad in [
            "",
            "text",
            "/",
            "text/",
            "/html",
            "a b/c",
            "a/b\r\nx: y",
            "a/b;ü",
            "a/b/c",
            long.as_str(),
            " a/b",
        ] {
            assert!(!is_content_type(bad), "{bad}");
        }
    }
}
