"""Extract agent: finds the title and the readable text of a document."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from typing_extensions import TypedDict

from callboard import Agent
from examples.article_report.language import words

_UNREAD = {"script", "style", "nav", "header", "footer", "aside", "form", "noscript", "template"}
# fmt: off
_BLOCKS = {
    "address", "article", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption", "h1",
    "h2", "h3", "h4", "h5", "h6", "hr", "li", "main", "ol", "p", "pre", "section", "table",
    "td", "th", "tr", "ul",
}
# fmt: on
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}

agent = Agent("did:example:extract", "Extract")


class _Reader(HTMLParser):
    """Collects the visible text of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.heading = ""
        self.pieces: list[str] = []
        self._unread_depth = 0
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNREAD:
            self._unread_depth += 1
        if tag == "title" or tag in _HEADINGS:
            self._inside = tag
        if tag in _BLOCKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNREAD and self._unread_depth:
            self._unread_depth -= 1
        if tag == self._inside:
            self._inside = ""
        if tag in _BLOCKS:
            self.pieces.append("\n")

    def read_text(self, data: str) -> None:
        if self._inside == "title":
            self.title += data
        elif self._unread_depth == 0:
            if self._inside == "h1":
                self.heading += data
            # Headings are skipped: their few words would win every ranking of sentences.
            if self._inside not in _HEADINGS:
                # A line end in the source is a space on the page.
                self.pieces.append(re.sub(r"\s+", " ", data))

    # The name by which HTMLParser calls it.
    handle_data = read_text


class Extracted(TypedDict):
    """What a document says, without its form."""

    title: str
    text: str
    wordCount: int


@agent.capability("cap.text.extract.v1", price_cents=1)
def extract(body: str, contentType: str = "text/html") -> Extracted:
    """Extract the title and the readable text of an HTML page or a plain text."""
    body = body.replace("\0", "")
    if "html" in contentType:
        reader = _Reader()
        reader.feed(body)
        reader.close()
        title, text = reader.heading or reader.title, "".join(reader.pieces)
        lines = [re.sub(r"\s+", " ", line).strip() for line in text.split("\n")]
    else:
        # Plain text is wrapped where it is: only an empty line ends a paragraph.
        paragraphs = re.split(r"\n\s*\n", body)
        lines = [re.sub(r"\s+", " ", paragraph).strip() for paragraph in paragraphs]
        title = lines[0].lstrip("# ")[:120] if lines else ""
    text = "\n".join(line for line in lines if line)
    return {
        "title": re.sub(r"\s+", " ", title).strip(),
        "text": text,
        "wordCount": len(words(text)),
    }


if __name__ == "__main__":
    agent.run(register=False, until_eof=True)
