# Opens a report in a headless Chromium, and prints what is wrong with it there, one line each: on a phone and on a desk, in
# light and in dark, by keyboard alone, and on paper. Speaks the DevTools protocol over the browser's pipe.
import base64
import json
import os
import subprocess
import sys
import tempfile

BROWSER, PAGE = sys.argv[1:3]
PICTURES = sys.argv[3] if len(sys.argv) > 3 else None  # where to put pictures of what was seen

GROUNDS = {"light": "rgb(253, 252, 249)", "dark": "rgb(22, 25, 29)"}

# What can be reached by keyboard, in the order in which it stands.
STOPS = "[...document.querySelectorAll('a[href], summary, [tabindex]')]"

FIT = """(() => {
  const right = (x) => x.getBoundingClientRect().right, edge = Math.min(innerWidth, screen.width);
  const free = [...document.querySelectorAll('body *')].filter((x) => !x.closest('.scroll, .skip'));
  const small = [...document.querySelectorAll('p, li, dd, td')].filter((x) => parseFloat(getComputedStyle(x).fontSize) < 12);
  return { page: document.documentElement.scrollWidth, screen: innerWidth, ground: getComputedStyle(document.body).backgroundColor,
           wide: free.filter((x) => right(x) > edge + 1).map((x) => x.outerHTML.slice(0, 60)), small: small.length };
})()"""

# Where the focus is, and whether that can be seen.
FOCUS = f"""(() => {{
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  return {{ place: {STOPS}.indexOf(at), outlined: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
           seen: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth, what: at.outerHTML.slice(0, 60) }};
}})()"""

# Labels of one drawing, two of which cover each other, or that go over its edge.
LABELS = """[...document.querySelectorAll('svg')].flatMap((svg) => {
  const labels = [...svg.querySelectorAll('.fault text, .clock text')].map((x) => [x.textContent, x.getBoundingClientRect()]);
  const edge = svg.getBoundingClientRect();
  const over = labels.filter(([, a]) => a.right > edge.right + 1 || a.left < edge.left - 1).map(([text]) => text);
  const covered = labels.flatMap(([one, a], n) => labels.slice(n + 1).filter(([, b]) =>
    a.left < b.right && b.left < a.right && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > a.height / 3)
    .map(([two]) => one + ' and ' + two));
  return [...over, ...covered];
})"""

PAPER = """(() => ({
  closed: [...document.querySelectorAll('details')].filter((x) => x.lastElementChild.getBoundingClientRect().height === 0).length,
  cut: [...document.querySelectorAll('.scroll')].filter((x) => x.scrollWidth > x.clientWidth + 1).length,
  skip: [...document.querySelectorAll('.skip')].filter((x) => getComputedStyle(x).display !== 'none').length,
}))()"""


class Browser:
    def __init__(self, profile):
        commands, self.commands = os.pipe()
        self.events, events = os.pipe()
        # The protocol has the descriptors 3 for what we say and 4 for what it says.
        launch = f'exec "$0" "$@" 3<&{commands} 4>&{events}'
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(["bash", "-c", launch, BROWSER, *arguments], pass_fds=(commands, events),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(events)
        self.number, self.heard, self.session = 0, b"", None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")

    def hear(self):
        while b"\0" not in self.heard:
            piece = os.read(self.events, 1 << 20)
            if not piece:
                raise SystemExit("the browser ended")
            self.heard += piece
        message, self.heard = self.heard.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **parameters):
        self.number += 1
        question = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            question["sessionId"] = self.session
        os.write(self.commands, json.dumps(question).encode() + b"\0")
        while True:
            message = self.hear()
            if message.get("id") == self.number:
                if "error" in message:
                    raise SystemExit(f"{method}: {message['error']}")
                return message["result"]

    def open(self, page):
        self.ask("Page.navigate", url=f"file://{page}")
        while self.hear().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression):
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screen(self, width, scheme, medium=""):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, screenWidth=width, screenHeight=900,
                 deviceScaleFactor=1, mobile=width < 700)
        self.ask("Emulation.setEmulatedMedia", media=medium, features=[
            {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}])

    def press(self, key, code, text=""):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "")

    def picture(self, name):
        if PICTURES:
            with open(os.path.join(PICTURES, name), "wb") as file:
                file.write(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def end(self):
        self.session = None
        self.ask("Browser.close")
        self.process.wait(timeout=20)


def fits(browser):
    for width in (360, 390, 768, 1280):
        for scheme, ground in GROUNDS.items():
            browser.screen(width, scheme)
            seen, where = browser.value(FIT), f"at {width} px in {scheme}"
            browser.picture(f"{width}-{scheme}.png")
            if seen["page"] > seen["screen"] or seen["screen"] > width:
                yield f"{where} the page is {seen['page']} wide"
            for what in seen["wide"]:
                yield f"{where} it goes over the edge: {what}"
            if seen["ground"] != ground:
                yield f"{where} its ground is {seen['ground']}"
            if seen["small"]:
                yield f"{where} {seen['small']} texts are too small to be read"
    for labels in browser.value(LABELS):
        yield f"labels of a drawing cover each other, or go over its edge: {labels}"


def keyboard(browser):
    browser.screen(390, "light")
    stops = browser.value(f"{STOPS}.length")
    for place in range(min(stops, 60)):
        browser.press("Tab", 9)
        focus = browser.value(FOCUS)
        if focus["place"] != place:
            yield f"Tab {place + 1} leads to {focus['what']}, which is not the next thing"
            return
        if not focus["outlined"]:
            yield f"the focus cannot be seen on {focus['what']}"
        if not focus["seen"]:
            yield f"the focus is outside of the screen: {focus['what']}"
    browser.value("document.querySelector('summary').focus()")
    for opened in (True, False):
        browser.press("Enter", 13, "\r")
        if browser.value("document.querySelector('details').open") != opened:
            yield f"Enter does not {'open' if opened else 'close'} what can be opened"
    browser.value("document.querySelector('.scroll').focus()")
    before = "document.querySelector('.scroll').scrollLeft"
    browser.press("ArrowRight", 39)
    browser.value("new Promise((done) => setTimeout(done, 400))")
    scrolls = browser.value("(() => { const x = document.querySelector('.scroll'); return x.scrollWidth > x.clientWidth; })()")
    if scrolls and browser.ask("Runtime.evaluate", expression=f"new Promise((done) => setTimeout(() => done({before}), 500))",
                               awaitPromise=True, returnByValue=True)["result"]["value"] == 0:
        yield "the arrow keys do not move what scrolls"


def paper(browser):
    browser.screen(794, "light", "print")
    seen = browser.value(PAPER)
    browser.picture("print.png")
    for what, said in (("closed", "explanations are missing on paper"), ("cut", "drawings or tables are cut off on paper"),
                       ("skip", "links for the keyboard are on paper")):
        if seen[what]:
            yield f"{seen[what]} {said}"


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    browser = Browser(profile)
    browser.open(PAGE)
    wrong = [line for look in (fits, keyboard, paper) for line in look(browser)]
    browser.end()
print("\n".join(wrong), end="")
