"""How pages look: light and dark, from a phone to a wall."""

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --paper: #f6f7f8; --card: #ffffff; --ink: #1f2328;
  --faint: #57606a; --line: #d9dee3; --link: #0b57a8; --good: #1a6e35; --bad: #a1260d;
  --c0: #0b62b8; --c1: #c4501b; --c2: #1b7f5c; --c3: #a9b4c0; --c4: #8250a8; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1d2126; --ink: #dde1e6;
  --faint: #a3acb6; --line: #363d45; --link: #86b8f5; --good: #6fce8b; --bad: #ff9d84;
  --c0: #5aa6f2; --c1: #f0935f; --c2: #5fc9a0; --c3: #56616d; --c4: #c39be8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
header, main, footer { max-width: 84rem; margin: 0 auto; padding: 0 clamp(.8rem, 2.5vw, 2rem); }
header { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; align-items: baseline;
  padding-top: 1rem; }
header nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; margin: 0;
  padding: 0; }
.product { font-weight: 700; font-size: 1.1rem; }
footer { padding-top: 1rem; padding-bottom: 3rem; color: var(--faint); font-size: .88rem; }
a { color: var(--link); }
a:focus-visible, button:focus-visible, input:focus-visible, summary:focus-visible,
  .wide:focus-visible { outline: 3px solid var(--c1); outline-offset: 2px; }
a[aria-current] { color: var(--ink); font-weight: 700; text-decoration: none; }
.skip { position: absolute; left: -100rem; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.skip:focus { left: 1rem; top: .5rem; background: var(--card); padding: .4rem .8rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .8rem 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 1.8rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0 0 .2rem; }
p { margin: .3rem 0; max-width: 60rem; overflow-wrap: anywhere; }
.answers, .cards { display: grid; gap: .8rem; list-style: none; padding: 0; margin: .6rem 0; }
.answers { grid-template-columns: repeat(auto-fit, minmax(min(15rem, 100%), 1fr)); }
.cards { grid-template-columns: repeat(auto-fill, minmax(min(23rem, 100%), 1fr)); }
.card { position: relative; }
.answer, .card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .8rem .9rem; min-width: 0; }
.answer { border-left: .35rem solid var(--c3); }
.answer.good { border-left-color: var(--good); }
.answer.bad { border-left-color: var(--bad); }
.answer h2 { margin: 0 0 .2rem; color: var(--faint); font-size: .85rem; font-weight: 600; }
.answer strong { display: block; font-size: 1.15rem; line-height: 1.3; }
.good strong { color: var(--good); }
.bad strong { color: var(--bad); }
.answer p, .card p { font-size: .88rem; color: var(--faint); }
.card p { min-height: 3.9em; }
figure { margin: .3rem 0 0; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--faint); font: 11px system-ui, sans-serif; }
svg text.name { fill: var(--ink); }
.grid { stroke: var(--line); stroke-width: .7; }
.axis, .guide { stroke: var(--faint); stroke-width: 1; fill: none; }
.guide { stroke-dasharray: 4 4; }
.line { stroke: var(--c); stroke-width: 2; fill: none; stroke-linejoin: round; }
.fill { fill: var(--c); }
.band { fill: var(--c); opacity: .2; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); }
.c3 { --c: var(--c3); } .c4 { --c: var(--c4); }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; list-style: none; margin: .2rem 0 0;
  padding: 0; font-size: .85rem; }
.legend span { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem;
  background: var(--c); margin-right: .35rem; vertical-align: -.05rem; }
details { margin-top: .4rem; font-size: .85rem; }
summary { cursor: pointer; color: var(--link); width: fit-content; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding: .3rem 0; }
th, td { padding: .25rem 1rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 14rem; max-width: 24rem; }
th { font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .4rem;
  padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; }
form { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; margin: .6rem 0; }
input, button { font: inherit; color: var(--ink); background: var(--card); padding: .3rem .6rem;
  border: 1px solid var(--faint); border-radius: .3rem; max-width: 100%; }
button { cursor: pointer; }
@media (max-width: 30rem) { .card p { min-height: 0; } th, td { padding-right: .7rem; } }
"""

# A browser applies this style, loads nothing, runs no script, and shows the page in no frame.
STYLE_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{STYLE_DIGEST}'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
