# Reads a report as a parser of HTML does, and prints what is wrong with it, one line each.
import sys
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Report(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.targets, self.headings, self.wrong = [], [], [], [], []
        self.named, self.in_svg = 0, 0

    def handle_starttag(self, tag, attributes):
        at = dict(attributes)
        line = self.getpos()[0]
        if "id" in at:
            self.ids.append(at["id"])
        if tag == "a":
            self.targets.append(at.get("href", ""))
        self.targets += ["#" + name for name in at.get("aria-labelledby", "").split()]
        if tag in {"h1", "h2", "h3"}:
            self.headings.append(int(tag[1]))
        if tag == "svg" and not (at.get("role") == "img" and at.get("aria-label")):
            self.wrong.append(f"line {line}: a drawing has no words for those who cannot see it")
        scrolls = "scroll" in at.get("class", "").split()
        if scrolls and not (at.get("tabindex") == "0" and at.get("role") == "region"):
            self.wrong.append(f"line {line}: what scrolls cannot be reached by keyboard")
        if tag == "th" and at.get("scope") not in {"col", "row"}:
            self.wrong.append(f"line {line}: a heading of the table does not say what it heads")
        if tag == "script" or any(name.startswith("on") or name == "src" for name in at):
            self.wrong.append(f"line {line}: <{tag}> needs a script or another file")
        if tag == "html" and not at.get("lang"):
            self.wrong.append("the page does not say its language")
        if tag not in VOID:
            self.open.append((tag, line))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.wrong.append(f"line {self.getpos()[0]}: </{tag}> closes {self.open[-1:]}")
        else:
            self.open.pop()

    def done(self):
        self.wrong += [f"<{tag}> of line {line} is never closed" for tag, line in self.open]
        self.wrong += [f"the id {id} is there twice" for id in {id for id in self.ids if self.ids.count(id) > 1}]
        for target in self.targets:
            if not target.startswith("#") or target[1:] not in self.ids:
                self.wrong.append(f"a link to {target} leads nowhere in the page")
        if self.headings[:1] != [1] or self.headings.count(1) != 1:
            self.wrong.append("there is not one heading of the page, at its top")
        for before, heading in zip(self.headings, self.headings[1:]):
            if heading > before + 1:
                self.wrong.append(f"a heading of depth {heading} follows one of depth {before}")
        if not self.ids or not self.targets:
            self.wrong.append("there is nothing in it")


report = Report()
report.feed(open(sys.argv[1], encoding="utf-8").read())
report.close()
report.done()
print("\n".join(report.wrong), end="")
