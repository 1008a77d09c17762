// The planner of engine/plan (geometry, reservation, ladder) over the embedded numbers. Bytes stay below 2^53.
"use strict";

function makePlanner(numbers) {
  const pageTokens = numbers.page_tokens;
  const pagesOf = (tokens) => Math.ceil(tokens / pageTokens);

  function planeBytes(plane, width) {
    const groups = plane.group ? Math.ceil(width / plane.group) : 1;
    return Math.ceil((width * plane.bits) / 8) + groups * plane.scale_bytes;
  }

  function keyValueBytes(geometry, format, layers) {
    const width = geometry.head_dim;
    return layers * geometry.key_value_heads * (planeBytes(format.keys, width) + planeBytes(format.values, width));
  }

  function convChannels(geometry) {
    return 2 * geometry.linear_key_heads * geometry.linear_key_dim
      + geometry.linear_value_heads * geometry.linear_value_dim;
  }

  function stateImageBytes(geometry, fp16, historyBytes, tailHidden, ringBytes) {
    const linear = geometry.layers - geometry.attention_layers;
    const recurrent = linear * geometry.linear_value_heads * geometry.linear_key_dim * geometry.linear_value_dim;
    const history = linear * convChannels(geometry) * (geometry.conv_taps - 1) * historyBytes;
    return recurrent * (fp16 ? 2 : 4) + history + (tailHidden ? geometry.hidden_size * 2 : 0) + ringBytes;
  }

  function replayRecordBytes(geometry) {
    const heads = geometry.linear_value_heads;
    const inputs = geometry.linear_key_heads * geometry.linear_key_dim + heads * geometry.linear_value_dim;
    return (geometry.layers - geometry.attention_layers) * (2 * inputs + 8 * heads + 2 * convChannels(geometry));
  }

  function weightBytes(input) {
    const weights = numbers.models[input.model].weights;
    let total = weights.text;
    if (input.backend !== "none") total += weights[input.backend];
    if (input.head) total += weights.draft_head;
    if (input.experts_q4 && input.backend === "mtp") total -= weights.mtp_experts_q4_saving;
    return total;
  }

  function ledger(input, context, lanes, pages) {
    const engine = numbers.engines[input.engine];
    const figures = engine.models[input.model];
    const geometry = numbers.models[input.model].geometry;
    const format = numbers.formats[input.format];
    const drafter = numbers.drafters[input.backend] || { ring_bytes: 0, page_token_bytes: 0, feature_layers: 0 };
    const speculates = input.backend !== "none";
    const columns = input.drafts + 1;
    const place = speculates ? input.drafts - 1 : 0; // of this number of drafts in the tables
    const spare = input.slots ?? engine.spare_images ?? lanes;
    const pools = input.backend === "mtp" || input.backend === "dflash" ? 2 : 1;
    const image = stateImageBytes(
      geometry, input.fp16, engine.history_bytes, engine.tail_hidden || speculates, drafter.ring_bytes);
    const draftPages = pages + lanes * pagesOf(input.drafts - 1);
    const [, graphs, graphsLane] = engine.graphs[input.backend][place].find(([last]) => context <= last);
    const rows = {
      "weights": weightBytes(input),
      "device context": engine.context_bytes,
      "KV pages": keyValueBytes(geometry, format, geometry.attention_layers) * pageTokens * pages,
      "MTP KV pages": input.backend === "mtp" ? keyValueBytes(geometry, format, 1) * pageTokens * draftPages : 0,
      "drafter KV pages": drafter.page_token_bytes * pageTokens * pages,
      "block tables": 4 * pagesOf(context) * lanes * pools,
      "state images": (lanes + spare) * image,
      "replay records": speculates ? lanes * columns * replayRecordBytes(geometry) : 0,
      "prefill hidden": geometry.hidden_size * input.chunk * 2,
      "drafter features": drafter.feature_layers * geometry.hidden_size * (input.chunk + columns * lanes) * 2,
      "round logits": engine.logit_columns[input.backend][place] * geometry.vocabulary_rows * engine.logit_bytes * lanes,
      "token counts": 4 * geometry.token_count * lanes,
      "round scalars": figures.scalars[input.backend],
      "workspace": figures.workspace[input.cublas ? "cublas" : "plain"][input.chunk],
      "graphs": graphs + graphsLane * lanes,
      "vision bridge": input.vision ? engine.vision_bridge_bytes : 0,
    };
    return Object.fromEntries(Object.entries(rows).filter(([, size]) => size > 0));
  }

  const sum = (rows) => Object.values(rows).reduce((total, size) => total + size, 0);

  // One combination of context and lanes: what it takes of `input.free`, and how many bytes stay (negative: short).
  function attempt(input, context, lanes) {
    const engine = numbers.engines[input.engine];
    const low = Math.max(pagesOf(context), lanes), high = lanes * pagesOf(context);
    const headroom = input.pool === "auto" ? engine.headroom_bytes : 0;
    const least = sum(ledger(input, context, lanes, low));
    let pages = low;
    if (input.pool === "auto") {
      const page = sum(ledger(input, context, lanes, low + 1)) - least;
      const more = Math.floor((input.free - headroom - least) / page);
      if (more > 0) pages = Math.min(high, low + more);
    } else if (input.pool !== null) {
      pages = Math.min(Math.max(pagesOf(input.pool), low), high);
    }
    const rows = ledger(input, context, lanes, pages);
    const left = input.free - headroom - sum(rows);
    return { context, lanes, capacity: pages * pageTokens, headroom, left, fits: left >= 0, ledger: rows };
  }

  function problem(input) {
    const limit = numbers.models[input.model].geometry.max_positions;
    if (input.context > limit) return `the model knows ${limit} positions; use a context of at most ${limit}`;
    if (typeof input.pool !== "number") return null;
    if (pagesOf(input.pool) < input.lanes) {
      return `each of ${input.lanes} lanes needs a page of the pool; use at least ${input.lanes * pageTokens} tokens`;
    }
    const most = input.lanes * pagesOf(input.context);
    if (pagesOf(input.pool) > most) {
      return `${input.lanes} lanes of ${input.context} tokens can use a pool of at most ${most * pageTokens} tokens`;
    }
    return null;
  }

  // Lanes before rungs, as the box does for sizes that nobody set; a pool of its own size is kept.
  function* candidates(input) {
    const held = typeof input.pool === "number";
    const first = held ? Math.min(input.context, input.pool) : input.context;
    for (const rung of [first, ...numbers.rungs.filter((rung) => rung < first)]) {
      for (let lanes = input.lanes; lanes >= 1; lanes--) {
        if (!held || pagesOf(input.pool) <= lanes * pagesOf(rung)) yield [rung, lanes];
      }
    }
  }

  // {problem} or {plan: first candidate that fits, or null; rejected: those before it}.
  function plan(input) {
    const wrong = problem(input);
    if (wrong) return { problem: wrong };
    const rejected = [];
    for (const [context, lanes] of candidates(input)) {
      const tried = attempt(input, context, lanes);
      if (tried.fits) return { plan: tried, rejected };
      rejected.push(tried);
    }
    return { plan: null, rejected };
  }

  // Longest context with these lanes and this pool, in whole pages; 0 when none fits.
  function longest(input) {
    const limit = numbers.models[input.model].geometry.max_positions;
    let low = 0;
    let high = Math.floor((typeof input.pool === "number" ? Math.min(limit, input.pool) : limit) / pageTokens);
    while (low < high) {
      const middle = Math.floor((low + high + 1) / 2);
      if (attempt(input, middle * pageTokens, input.lanes).fits) low = middle;
      else high = middle - 1;
    }
    return low * pageTokens;
  }

  function verdict(tried) {
    return tried.left < 0 ? "does not fit" : tried.left < numbers.tight_bytes ? "tight" : "fits";
  }

  return { attempt, plan, longest, verdict, sum };
}
