// The form and what is drawn from it. The state is kept in the address, so a link states a whole question.
"use strict";

const numbers = JSON.parse(document.getElementById("numbers").textContent);
const planner = makePlanner(numbers);
const MIB = 2 ** 20;
const BACKENDS = { none: "none", mtp: "MTP", dflash: "DFlash", dflash2: "DFlash2" };
const GROUPS = [
  ["held by others", ["held by others"]],
  ["weights", ["weights"]],
  ["device context", ["device context"]],
  ["KV cache", ["KV pages", "MTP KV pages", "drafter KV pages", "block tables"]],
  ["recurrent state", ["state images", "replay records"]],
  ["workspace", ["workspace", "prefill hidden", "drafter features", "vision bridge"]],
  ["logits and counts", ["round logits", "token counts", "round scalars"]],
  ["graphs", ["graphs"]],
  ["headroom", ["headroom"]],
];
const WHOLE = ["card", "held", "context", "lanes", "pool", "drafts", "slots", "chunk"];
const SWITCHES = ["head", "experts_q4", "fp16", "cublas", "vision"];
const WORDS = ["model", "format", "backend", "engine", "pool_mode"];

const element = (id) => document.getElementById(id);
const count = (value) => value.toLocaleString("en-US");
const mib = (bytes) => count(Math.round(bytes / MIB));
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(2)} GiB`;

function make(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function row(cells, className) {
  const made = make("tr", undefined, className);
  for (const cell of cells) made.append(cell instanceof Node ? cell : make("td", cell));
  return made;
}

function options(id, pairs) {
  const select = element(id), before = select.value;
  select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
  select.value = pairs.some(([value]) => value === before) ? before : pairs[0][0];
}

function clamp(id, least, most, otherwise) {
  const value = Math.trunc(Number(element(id).value));
  return element(id).value === "" || !Number.isFinite(value) ? otherwise : Math.min(most, Math.max(least, value));
}

function readForm() {
  const model = element("model").value, backend = element("backend").value;
  const limit = numbers.models[model].geometry.max_positions;
  const context = clamp("context", 1, limit, 8192);
  const card = clamp("card", 0, 2 ** 24, 24576) * MIB, held = clamp("held", 0, 2 ** 24, 0) * MIB;
  const mode = element("pool_mode").value;
  return {
    model, backend, context, card, held,
    engine: element("engine").value,
    format: element("format").value,
    lanes: clamp("lanes", 1, numbers.most_lanes, 1),
    pool: mode === "auto" ? "auto" : mode === "tokens" ? clamp("pool", 1, limit * numbers.most_lanes, context) : null,
    drafts: backend === "none" ? 0 : clamp("drafts", 1, numbers.most_drafts, 3),
    head: backend !== "none" && element("head").checked,
    experts_q4: backend === "mtp" && element("experts_q4").checked,
    chunk: Number(element("chunk").value),
    slots: clamp("slots", 0, 64, null),
    fp16: element("fp16").checked,
    cublas: element("cublas").checked,
    vision: element("vision").checked,
    free: card - held,
  };
}

function fill(values) {
  for (const [id, value] of Object.entries(values)) {
    if (SWITCHES.includes(id)) element(id).checked = value;
    else element(id).value = value === null ? "" : value;
  }
}

function followModel() {
  const model = element("model").value, record = numbers.models[model];
  options("backend", record.backends.map((name) => [name, BACKENDS[name]]));
  options("profile", [["", "my own"], ...Object.keys(numbers.profiles[model]).map((name) => [name, name])]);
  element("experts_q4").parentElement.hidden = !record.weights.mtp_experts_q4_saving;
  if (element("experts_q4").parentElement.hidden) element("experts_q4").checked = false;
}

function applyProfile() {
  const profile = numbers.profiles[element("model").value][element("profile").value];
  if (!profile) return;
  const { pool, ...rest } = profile;
  fill(rest);
  // A pool of exactly one context is what "one context" says.
  const own = typeof pool === "number" && pool !== profile.context;
  element("pool_mode").value = own ? "tokens" : pool === "auto" ? "auto" : "context";
  if (own) element("pool").value = pool;
}

function followSpeculation() {
  const plain = element("backend").value === "none";
  for (const id of ["drafts", "head", "experts_q4"]) {
    element(id).disabled = plain || (id === "experts_q4" && element("backend").value !== "mtp");
    element(id).parentElement.classList.toggle("off", element(id).disabled);
  }
  element("pool_label").hidden = element("pool_mode").value !== "tokens";
}

const lanesText = (lanes) => `${lanes} lane${lanes > 1 ? "s" : ""}`;

function showVerdict(input, tried, longest) {
  const word = planner.verdict(tried);
  const box = element("verdict");
  box.className = `card ${word.replaceAll(" ", "-")}`;
  box.dataset.verdict = word;
  box.dataset.longest = longest;
  box.dataset.left = tried.left;
  const state = tried.left < 0 ? `${gib(-tried.left)} short` : `${gib(tried.left)} left`;
  box.replaceChildren(
    make("div", `${word[0].toUpperCase()}${word.slice(1)} · ${state}`, "word"),
    make("p", `${count(input.context)} tokens, ${lanesText(input.lanes)}, a pool of ${count(tried.capacity)} tokens, ${input.format}`),
    make("p", longest ? `Largest context with ${lanesText(input.lanes)}: ${count(longest)} tokens` : "No context fits with these lanes"),
  );
}

function showLedger(input, tried) {
  const rows = { "held by others": input.held, ...tried.ledger, "headroom": tried.headroom };
  const taken = planner.sum(rows), scale = Math.max(taken, input.card) || 1;
  const bar = element("bar"), table = element("ledger");
  bar.replaceChildren();
  table.replaceChildren(row([make("th", "component"), make("th", "MiB")]));
  GROUPS.forEach(([name, parts], place) => {
    const present = parts.filter((part) => rows[part]);
    const size = present.reduce((total, part) => total + rows[part], 0);
    if (!size) return;
    const piece = make("span");
    piece.style.cssText = `width:${(100 * size) / scale}%;background:var(--p${place})`;
    piece.title = `${name}: ${mib(size)} MiB`;
    bar.append(piece);
    const label = make("td"), key = make("span", undefined, "key");
    key.style.background = `var(--p${place})`;
    label.append(key, name);
    table.append(row([label, mib(size)]));
    if (present.length > 1) for (const part of present) table.append(row([part, (rows[part] / MIB).toFixed(1)], "part"));
  });
  const label = make("td"), key = make("span", undefined, "key");
  key.style.background = tried.left < 0 ? "var(--bad)" : "var(--free)";
  label.append(key, tried.left < 0 ? "missing" : "left");
  table.append(row([label, mib(Math.abs(tried.left))], "total"));
  if (tried.left < 0) {
    const edge = make("i");
    edge.style.left = `${(100 * input.card) / scale}%`;
    edge.title = "end of the card";
    bar.append(edge);
  }
  bar.setAttribute("aria-label", `${mib(taken)} MiB of ${mib(input.card)} MiB`);
}

function showLadder(input, { plan, rejected }) {
  const below = plan ? 0 : planner.longest({ ...input, lanes: 1, pool: null });
  element("ladder").textContent = !plan
    ? "Nothing: no rung of the ladder fits. " + (below
      ? `A context of ${count(below)} tokens in one lane would; so would a smaller KV format or no speculation.`
      : "These weights leave no room for any context.")
    : rejected.length
      ? `${count(plan.context)} tokens, ${lanesText(plan.lanes)}, a pool of ${count(plan.capacity)} tokens, with ${gib(plan.left)} left. `
        + "It drops lanes before rungs, and only sizes that nobody set:"
      : "This, as asked.";
  element("ladder").dataset.context = plan ? plan.context : 0;
  element("ladder").dataset.lanes = plan ? plan.lanes : 0;
  element("ladder").dataset.rejected = rejected.length;
  const table = element("rejected");
  table.replaceChildren();
  if (!rejected.length) return;
  const optional = (text) => make("th", text, "optional");
  table.append(row([make("th", "rejected"), make("th", "lanes"), optional("weights"), optional("KV"), optional("rest"), make("th", "short MiB")]));
  for (const tried of rejected) {
    const cache = GROUPS[3][1].reduce((total, part) => total + (tried.ledger[part] || 0), 0);
    const rest = planner.sum(tried.ledger) + tried.headroom - tried.ledger.weights - cache;
    const cells = [tried.ledger.weights, cache, rest].map((size) => make("td", mib(size), "optional"));
    table.append(row([count(tried.context), String(tried.lanes), ...cells, mib(-tried.left)]));
  }
}

function showFormats(input) {
  const limit = numbers.models[input.model].geometry.max_positions;
  element("formats").replaceChildren(...Object.keys(numbers.formats).map((format) => {
    const longest = planner.longest({ ...input, format });
    const meter = make("td", undefined, "meter"), track = make("div"), filled = make("b");
    filled.style.width = `${(100 * longest) / limit}%`;
    track.append(filled);
    meter.append(track);
    return row([format, meter, longest ? count(longest) : "none"], format === input.format ? "chosen" : "");
  }));
}

function render() {
  followSpeculation();
  const input = readForm();
  const found = planner.plan(input);
  element("origin").textContent = `Figures: ${numbers.engines[input.engine].origin}. Weights are those of the pinned artifact.`;
  if (found.problem) {
    element("verdict").className = "card does-not-fit";
    element("verdict").dataset.verdict = "problem";
    element("verdict").replaceChildren(make("div", "Not possible", "word"), make("p", found.problem));
    for (const id of ["bar", "ledger", "rejected", "formats"]) element(id).replaceChildren();
    element("ladder").textContent = "Nothing.";
    return;
  }
  const asked = planner.attempt(input, input.context, input.lanes);
  showVerdict(input, asked, planner.longest(input));
  showLedger(input, asked);
  showLadder(input, found);
  showFormats(input);
}

function remember() {
  const state = new URLSearchParams();
  for (const id of [...WORDS, ...WHOLE]) if (element(id).value !== "") state.set(id, element(id).value);
  for (const id of SWITCHES) if (element(id).checked) state.set(id, "1");
  history.replaceState(null, "", `#${state}`);
}

function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  if (!numbers.models[state.get("model")]) {
    element("profile").value = Object.keys(numbers.profiles[element("model").value])[0];
    applyProfile();
    return;
  }
  element("model").value = state.get("model");
  followModel();
  for (const id of [...WORDS, ...WHOLE]) if (state.has(id)) element(id).value = state.get(id);
  for (const id of ["backend", "format", "chunk", "engine", "pool_mode"]) {
    if (element(id).selectedIndex < 0) element(id).selectedIndex = 0; // a link from another version
  }
  for (const id of SWITCHES) element(id).checked = state.get(id) === "1";
}

function changed(event) {
  const id = event.target.id;
  if (id === "model") {
    followModel();
    element("profile").selectedIndex = 1;
    applyProfile();
  } else if (id === "profile") applyProfile();
  else if (!["card", "held", "engine"].includes(id)) element("profile").value = "";
  render();
  remember();
}

options("model", Object.keys(numbers.models).map((name) => [name, name]));
options("format", Object.keys(numbers.formats).map((name) => [name, name]));
options("chunk", numbers.chunks.map((size) => [String(size), count(size)]));
element("contexts").replaceChildren(...[...numbers.rungs, 65536, 32768, 8192].map((size) => new Option(count(size), size)));
element("lanes").max = numbers.most_lanes;
element("drafts").max = numbers.most_drafts;
fill({ card: 24576, held: 310 });
followModel();
restore();
element("form").addEventListener("input", changed);
element("form").addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", () => { restore(); render(); });
render();
