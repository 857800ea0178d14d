//! The document as an HTML page: one file, without scripts or external resources.
//!
//! All text goes through `Html::text` or `Html::prose`, which escape it.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::document;
use crate::http::problem::status;
use crate::service::Code;
use schema::{resolve, table};

mod curl;
mod schema;

static PAGE: LazyLock<String> = LazyLock::new(|| render(document()));

/// The HTML page.
pub fn html() -> &'static str {
    &PAGE
}

/// The HTML written so far.
#[derive(Default)]
struct Html(String);

impl Html {
    /// Appends trusted markup.
    fn raw(&mut self, markup: &str) -> &mut Html {
        self.0.push_str(markup);
        self
    }

    /// Appends escaped text.
    fn text(&mut self, text: &str) -> &mut Html {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
        self
    }

    /// Appends escaped text, with backticks turned into code elements.
    fn prose(&mut self, text: &str) -> &mut Html {
        for (at, part) in text.split('`').enumerate() {
            if at % 2 == 1 {
                self.raw("<code>").text(part).raw("</code>");
            } else {
                self.text(part);
            }
        }
        self
    }

    /// Appends an element that contains prose.
    fn element(&mut self, name: &str, text: &str) -> &mut Html {
        self.raw("<").raw(name).raw(">").prose(text).raw("</").raw(name).raw(">")
    }
}

/// An operation with its path and method.
struct Entry<'a> {
    path: &'a str,
    verb: &'a str,
    operation: &'a Value,
    parameters: Vec<&'a Value>,
}

fn render(document: &Value) -> String {
    let mut page = Html::default();
    let style = include_str!("page.css");
    page.raw("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">")
        .raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")
        .raw("<title>codeQ API</title><style>")
        .raw(style)
        .raw("</style></head><body><header>");
    let info = at(document, "/info");
    page.raw("<h1>").text(string(info, "title")).raw(" <small>").text(string(info, "version"));
    page.raw("</small></h1>").element("p", string(info, "summary"));
    page.element("p", string(info, "description"));
    page.raw("<p><a href=\"/openapi.json\">OpenAPI 3.1 document</a></p></header><main>");
    let entries = entries(document);
    let tags = list(document, "tags");
    contents(&mut page, tags, &entries);
    for tag in tags {
        section(&mut page, document, tag, &entries);
    }
    callback(&mut page, document);
    problems(&mut page);
    page.raw("</main><footer class=\"soft\">").text(string(at(info, "/license"), "name"));
    page.raw("</footer></body></html>\n");
    page.0
}

fn entries(document: &Value) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    for (path, item) in fields(document, "paths") {
        for verb in ["get", "post", "put", "patch", "delete"] {
            let Some(operation) = item.get(verb) else { continue };
            let parameters = list(item, "parameters").iter().chain(list(operation, "parameters"));
            let parameters = parameters.map(|parameter| resolve(document, parameter)).collect();
            entries.push(Entry { path, verb, operation, parameters });
        }
    }
    entries
}

fn contents(page: &mut Html, tags: &[Value], entries: &[Entry<'_>]) {
    page.raw("<nav aria-label=\"Contents\">");
    for tag in tags {
        page.element("h4", string(tag, "name")).raw("<ul>");
        for entry in of_tag(entries, tag) {
            link(page, string(entry.operation, "operationId"), string(entry.operation, "summary"));
        }
        page.raw("</ul>");
    }
    page.raw("<h4>more</h4><ul>");
    link(page, "taskFinished", "Result callback");
    link(page, "problems", "Error codes");
    page.raw("</ul></nav>");
}

fn link(page: &mut Html, anchor: &str, title: &str) {
    page.raw("<li><a href=\"#").text(anchor).raw("\">").prose(title).raw("</a></li>");
}

fn of_tag<'a>(entries: &'a [Entry<'a>], tag: &'a Value) -> impl Iterator<Item = &'a Entry<'a>> {
    let name = string(tag, "name");
    entries.iter().filter(move |entry| {
        list(entry.operation, "tags").first().and_then(Value::as_str) == Some(name)
    })
}

fn section(page: &mut Html, document: &Value, tag: &Value, entries: &[Entry<'_>]) {
    page.raw("<section>").element("h2", string(tag, "name"));
    page.element("p", string(tag, "description"));
    for entry in of_tag(entries, tag) {
        article(page, document, entry);
    }
    page.raw("</section>");
}

fn article(page: &mut Html, document: &Value, entry: &Entry<'_>) {
    let operation = entry.operation;
    page.raw("<article id=\"").text(string(operation, "operationId")).raw("\"><h3>");
    page.prose(string(operation, "summary"))
        .raw("</h3><div class=\"route\"><code><span class=\"verb\">");
    page.text(&entry.verb.to_uppercase()).raw("</span> ").text(entry.path).raw("</code>");
    page.raw("<span class=\"who\">").text(&caller(operation)).raw("</span></div>");
    page.element("p", string(operation, "description"));
    if !entry.parameters.is_empty() {
        parameters(page, &entry.parameters);
    }
    if let Some(media) = operation.pointer("/requestBody/content/application~1json") {
        let required = operation.pointer("/requestBody/required") == Some(&Value::Bool(true));
        page.raw("<h4>Body").raw(if required { "</h4>" } else { " (may be empty)</h4>" });
        table(page, document, at(media, "/schema"));
    }
    page.raw("<h4>Example</h4><pre><code>").text(&curl::line(entry)).raw("</code></pre>");
    answers(page, document, operation);
    page.raw("</article>");
}

fn caller(operation: &Value) -> String {
    match (string(operation, "x-codeq-access"), string(operation, "x-codeq-scope")) {
        ("open", _) => "no token".to_owned(),
        ("any", _) => "any token".to_owned(),
        (access, "") => access.to_owned(),
        (access, scope) => format!("{access} with {scope}"),
    }
}

fn parameters(page: &mut Html, parameters: &[&Value]) {
    page.raw("<h4>Parameters</h4><div class=\"wide\"><table>");
    for parameter in parameters {
        page.raw("<tr><td><code>").text(string(parameter, "name")).raw("</code>");
        if parameter.get("required") == Some(&Value::Bool(true)) {
            page.raw(" <span class=\"bad\" title=\"required\">*</span>");
        }
        page.raw("<br><span class=\"soft\">").text(string(parameter, "in"));
        page.raw("</span></td><td>").text(&schema::kind(at(parameter, "/schema")));
        page.raw("</td><td>").prose(string(parameter, "description")).raw("</td></tr>");
    }
    page.raw("</table></div>");
}

fn answers(page: &mut Html, document: &Value, operation: &Value) {
    page.raw("<h4>Responses</h4><div class=\"wide\"><table>");
    for (status, answer) in fields(operation, "responses") {
        let answer = resolve(document, answer);
        let class = if status.starts_with('2') { "good" } else { "bad" };
        page.raw("<tr><td class=\"").raw(class).raw("\">").text(status).raw("</td><td>");
        let media = fields(answer, "content").next();
        match media {
            Some((name, media)) if name == "application/problem+json" => {
                codes(page, at(media, "/schema"));
            }
            media => {
                page.prose(string(answer, "description"));
                if let Some((name, media)) = media {
                    page.raw(" <span class=\"soft\">").text(name).raw("</span>");
                    table(page, document, at(media, "/schema"));
                }
            }
        }
        page.raw("</td></tr>");
    }
    page.raw("</table></div>");
}

fn codes(page: &mut Html, schema: &Value) {
    let codes = schema.pointer("/properties/code/enum").and_then(Value::as_array);
    for (at, code) in codes.into_iter().flatten().filter_map(Value::as_str).enumerate() {
        page.raw(if at == 0 { "" } else { ", " });
        page.raw("<a href=\"#").text(code).raw("\"><code>").text(code).raw("</code></a>");
    }
}

fn callback(page: &mut Html, document: &Value) {
    let operation = at(document, "/webhooks/taskFinished/post");
    page.raw("<section id=\"taskFinished\"><h2>result callback</h2>");
    page.element("p", string(operation, "description"));
    let all: Vec<&Value> = list(operation, "parameters").iter().collect();
    parameters(page, &all);
    page.raw("<h4>Body</h4>");
    table(page, document, at(operation, "/requestBody/content/application~1json/schema"));
    page.raw("</section>");
}

fn problems(page: &mut Html) {
    page.raw("<section id=\"problems\"><h2>error codes</h2>");
    page.element(
        "p",
        "The `type` of a problem document links to this table. Programs should use its `code`.",
    );
    page.raw(
        "<div class=\"wide\"><table><tr><th>Code</th><th>Meaning</th><th>What to do</th></tr>",
    );
    let mut before = "";
    for code in Code::ALL {
        // A code with two statuses has two adjacent rows and one anchor.
        match code.text() == before {
            true => page.raw("<tr>"),
            false => page.raw("<tr id=\"").text(code.text()).raw("\">"),
        };
        before = code.text();
        page.raw("<td><code>").text(code.text()).raw("</code><br><span class=\"soft\">");
        page.text(status(*code).as_str()).raw("</span></td><td>").prose(code.meaning());
        page.raw("</td><td>").prose(code.remedy()).raw("</td></tr>");
    }
    page.raw("</table></div></section>");
}

fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

fn string<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn fields<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value.get(field).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut html = Html::default();
        html.prose("a `<script>` & \"b\" 'c'");
        assert_eq!(html.0, "a <code>&lt;script&gt;</code> &amp; &quot;b&quot; &#39;c&#39;");
    }

    #[test]
    fn tags_are_balanced() {
        let page = html();
        for name in [
            "article", "section", "table", "tr", "td", "div", "p", "code", "pre", "ul", "li",
            "span", "a",
        ] {
            let open = page.matches(&format!("<{name}>")).count()
                + page.matches(&format!("<{name} ")).count();
            assert_eq!(open, page.matches(&format!("</{name}>")).count(), "{name}");
        }
        assert!(!page.contains("<script") && !page.contains("http://") && !page.contains("src="));
    }
}
