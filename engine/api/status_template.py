"""The look of the status page. One style sheet, whose hash the page's security policy names; no attribute styles."""

STYLE = """
:root { --back: #f5f6f4; --card: #fff; --ink: #1d2420; --soft: #626c66; --line: #dfe4e0; --good: #1f7a4d;
  --warn: #a06200; --bad: #b3261e; --a: #2f6f9f; --b: #5a9a78; --c: #c9973b; --d: #8f6aa8; --e: #8a938d; }
@media (prefers-color-scheme: dark) { :root { --back: #121614; --card: #1a201d; --ink: #e4e9e6; --soft: #97a29b;
  --line: #2c3530; --good: #5cc08d; --warn: #e0ac52; --bad: #ff8a80; --a: #5b9fd0; --b: #6fb392; --c: #d9ae5c;
  --d: #b08fc9; --e: #78827c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1.25rem 3rem; }
header { display: flex; align-items: baseline; gap: 1rem; flex-wrap: wrap; margin-bottom: .25rem; }
h1 { font-size: 1.6rem; margin: 0; letter-spacing: -.01em; }
h2 { font-size: .78rem; margin: 0 0 .75rem; color: var(--soft); text-transform: uppercase; letter-spacing: .08em; }
.state { padding: .1rem .75rem; border-radius: 1rem; font-weight: 600; color: var(--card); background: var(--warn); }
.state.ready { background: var(--good); } .state.failed { background: var(--bad); }
.soft { color: var(--soft); } .right { margin-left: auto; }
.detail { margin: .35rem 0 0; overflow-wrap: anywhere; }
.steps { display: flex; flex-wrap: wrap; gap: .4rem; list-style: none; padding: 0; margin: 1rem 0 0; }
.steps li { flex: 1 1 5rem; padding-top: .3rem; border-top: 4px solid var(--line); color: var(--soft); }
.steps .done { border-color: var(--good); } .steps .now { border-color: var(--warn); color: var(--ink); }
progress { width: 100%; height: .6rem; margin-top: .9rem; accent-color: var(--warn); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1rem;
  margin-top: 1.5rem; align-items: start; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem 1.15rem; }
.wide { grid-column: 1 / -1; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .22rem .75rem .22rem 0; vertical-align: top; font-weight: normal; }
tr + tr > * { border-top: 1px solid var(--line); }
thead th { color: var(--soft); } .n { text-align: right; white-space: nowrap; }
td:last-child, th:last-child { padding-right: 0; }
tbody th { color: var(--soft); } tr.sum > * { border-top: 2px solid var(--line); font-weight: 600; }
.lanes { display: flex; gap: .4rem; flex-wrap: wrap; margin-bottom: .75rem; }
.lanes span { flex: 1 1 4rem; text-align: center; padding: .4rem; border-radius: .35rem; border: 1px solid var(--line);
  color: var(--soft); }
.lanes .decoding { background: var(--good); color: var(--card); border-color: var(--good); }
.lanes .prefill { background: var(--warn); color: var(--card); border-color: var(--warn); }
svg { display: block; width: 100%; height: .8rem; border-radius: .4rem; margin-bottom: .75rem;
  background: var(--line); }
.p0 { fill: var(--a); background: var(--a); } .p1 { fill: var(--b); background: var(--b); }
.p2 { fill: var(--c); background: var(--c); } .p3 { fill: var(--d); background: var(--d); }
.p4 { fill: var(--e); background: var(--e); }
.dot { display: inline-block; width: .65rem; height: .65rem; border-radius: .15rem; margin-right: .5rem; }
.mark { font-weight: 600; white-space: nowrap; width: 1%; padding-right: 1.25rem; } .ok .mark { color: var(--good); }
.warning .mark { color: var(--warn); } .bad .mark { color: var(--bad); } .failed-row td { color: var(--bad); }
code, pre { font: .86em/1.5 ui-monospace, monospace; background: var(--back); border-radius: .25rem; }
code { padding: .1rem .35rem; overflow-wrap: anywhere; } pre { padding: .6rem; overflow-x: auto; margin: 0; }
.stack { display: grid; gap: 1rem; } .requests td { white-space: nowrap; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.2rem, 1fr)); gap: .9rem 1.5rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; font-size: 1.1rem; font-variant-numeric: tabular-nums; }
@media (max-width: 34rem) { .check { display: none; } }
.notes { margin: .75rem 0 0; padding-left: 1.1rem; color: var(--soft); }
details { margin-top: .75rem; } summary { cursor: pointer; color: var(--soft); }
footer { margin-top: 1.5rem; color: var(--soft); font-size: .87rem; }
"""

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<meta http-equiv="refresh" content="{{ refresh }}">
<title>{{ phase }} · NInfer</title>
<style>{{ style|safe }}</style>
</head>
<body>
<main>
<header>
<h1>{{ model if full and model else "NInfer" }}</h1>
<span class="state {{ phase }}">{{ phase }}</span>
{% if full %}
<span class="soft right">{% if ready %}serving for {{ uptime|duration }}{% elif since is not none
%}for {{ since|duration }}{% endif %}
{% if restarts %} · {{ restarts }} engine restart{{ "s" if restarts > 1 }}{% endif %}</span>
{% endif %}
</header>
{% if detail %}<p class="detail">{{ detail }}</p>{% endif %}
{% if not ready and passed >= 0 %}
<ol class="steps">
{% for one in phases %}
<li class="{{ 'done' if loop.index0 < passed else 'now' if loop.index0 == passed else 'next' }}">{{ one }}</li>
{% endfor %}
</ol>
{% endif %}
{% if progress %}
<progress max="{{ progress.total }}" value="{{ progress.done }}"></progress>
<div class="soft">{{ progress.done|number }} of {{ progress.total|number }} {{ progress.unit }}</div>
{% endif %}
{% if not full %}
<p class="soft">The rest is for callers with a key.</p>
{% else %}
<div class="cards">
{% if findings %}
<section class="wide">
<h2>Doctor</h2>
{% set troubled = findings|rejectattr("level", "equalto", "ok")|list %}
{% if troubled %}
<table><tbody>
{% for one in troubled %}
<tr class="{{ one.level }}"><td class="mark">{{ "needs a hand" if one.level == "bad" else "to know" }}</td>
<td>{{ one.sentence }}{% if one.command %}<br><code>{{ one.command }}</code>{% endif %}
{% if one.fixable %}<br><span class="soft">or</span> <code>ninfer-appliance doctor --fix</code>{% endif %}</td>
<td class="soft n check">{{ one.check }}</td></tr>
{% endfor %}
</tbody></table>
{% endif %}
{% if findings|length > troubled|length %}
<details{{ "" if troubled else " open" }}>
<summary>{{ findings|length - troubled|length }} checks are well</summary>
<table><tbody>
{% for one in findings if one.level == "ok" %}
<tr class="ok"><td class="mark">well</td><td>{{ one.sentence }}</td><td class="soft n check">{{ one.check }}</td></tr>
{% endfor %}
</tbody></table>
</details>
{% endif %}
</section>
{% elif not keeper %}
<section class="wide"><h2>Doctor</h2><span class="soft">Shown on the machine itself, or to callers with a key.</span>
</section>
{% endif %}
{% if log %}
<section class="wide"><h2>Last words</h2><pre>{{ log[-20:]|join("\\n") }}</pre></section>
{% endif %}
{% if work %}
<div class="stack">
<section>
<h2>Lanes</h2>
<div class="lanes">{% for one in work.lanes %}<span class="{{ one }}">{{ one }}</span>{% endfor %}</div>
<table><tbody>
<tr><th>waiting</th><td class="n">{{ work.waiting }} of {{ work.max_pending }}</td></tr>
<tr><th>context in use</th><td class="n">{{ (work.pages * work.page_tokens)|number }} of {{
(work.page_count * work.page_tokens)|number }} tokens</td></tr>
<tr><th>prompt tokens computed</th><td class="n">{{ work.prompt_tokens|number }}</td></tr>
<tr><th>tokens generated</th><td class="n">{{ work.generated_tokens|number }}</td></tr>
{% if work.pace %}<tr><th>last pace</th><td class="n">{{ "%.1f"|format(work.pace) }} tokens/s</td></tr>{% endif %}
</tbody></table>
</section>
<section>
<h2>Prefix cache</h2>
<table><tbody>
<tr><th>prompt tokens reused</th><td class="n">{{ work.reused_tokens|number }}</td></tr>
</tbody></table>
</section>
</div>
{% endif %}
{% if ledger %}
<section>
<h2>Memory</h2>
<svg viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="shares of the planned memory">
{% for one in ledger %}<rect class="p{{ [loop.index0, 4]|min }}" x="{{ one.begin }}" y="0" width="{{ one.width
}}" height="10"></rect>{% endfor %}
</svg>
<table>
<thead><tr><th>part</th><th class="n">planned</th><th class="n">measured</th></tr></thead>
<tbody>
{% for one in ledger %}
<tr><td><span class="dot p{{ [loop.index0, 4]|min }}"></span>{{ one.name }}</td><td class="n">{{ one.planned|size
}}</td><td class="n">{{ one.measured|size if one.measured is not none else "–" }}</td></tr>
{% endfor %}
{% for name, value in sums %}
<tr{{ ' class="sum"'|safe if loop.first }}><th>{{ name }}</th><td class="n">{{ value|size }}</td><td></td></tr>
{% endfor %}
</tbody></table>
</section>
{% endif %}
{% if plan %}
<section class="wide">
<h2>Plan</h2>
<dl>{% for name, value in plan %}<div><dt>{{ name }}</dt><dd>{{ value|number }}</dd></div>{% endfor %}</dl>
{% if remarks %}<ul class="notes">{% for one in remarks %}<li>{{ one }}</li>{% endfor %}</ul>{% endif %}
{% if rejected %}
<details>
<summary>{{ rejected|length }} larger {{ "plan was" if rejected|length == 1 else "plans were" }} tried</summary>
<ul class="notes">{% for one in rejected %}<li>{{ one }}</li>{% endfor %}</ul></details>
{% endif %}
</section>
{% endif %}
{% if ready %}
<section class="wide requests">
<h2>Last requests</h2>
{% if recent %}
<table>
<thead><tr><th>ended</th><th>protocol</th><th>outcome</th><th class="n">prompt</th><th class="n">reused</th>
<th class="n">generated</th><th class="n">first token</th><th class="n">whole</th></tr></thead>
<tbody>
{% for one in recent %}
<tr{{ ' class="failed-row"'|safe if one.outcome == "failed" }}><td>{{ (now - one.ended)|duration }} ago</td>
<td>{{ one.protocol|replace("_", " ") }}</td><td>{{ one.outcome }}</td><td class="n">{{ one.prompt_tokens|number }}</td>
<td class="n">{{ one.cached_tokens|number }}</td><td class="n">{{ one.generated|number }}</td>
<td class="n">{{ "%.2f s"|format(one.first_token) if one.first_token is not none else "–" }}</td>
<td class="n">{{ "%.2f s"|format(one.seconds) }}</td></tr>
{% endfor %}
</tbody></table>
{% else %}<span class="soft">None yet.</span>{% endif %}
</section>
{% endif %}
</div>
{% endif %}
<footer>{% if full %}NInfer {{ version }} · {% endif %}this page asks again every {{ refresh }} s</footer>
</main>
</body>
</html>
"""
