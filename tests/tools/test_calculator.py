"""docs/fit.html: current, made of the planner's numbers, and its JavaScript plans what Python plans.

The same 200 random questions go to Node (quickly, where it is installed) and to the page itself in a headless browser.
"""

import dataclasses
import html
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from appliance.model_facts import facts_of_catalog
from downloader.catalog import DEFAULT_CATALOG
from engine.exits import ConfigurationError
from engine.plan import (
    FORMATS,
    GIB,
    MIB,
    RECORDS,
    RUNGS,
    TORCH,
    Geometry,
    NoPlanError,
    Plan,
    Request,
    Settings,
    Speculation,
    Weights,
    key_value_bytes,
    longest_context,
    make,
)
from engine.plan.calculator import TIGHT_BYTES
from engine.plan.formats import KvFormat, Plane
from tools.calculator import PAGE, page
from tools.calculator.numbers import CHUNKS, backends, catalog_models

MODELS = catalog_models()
Question = dict[str, Any]


def embedded() -> dict[str, Any]:
    found = re.search(r'<script id="numbers" type="application/json">(.*?)</script>', PAGE.read_text(), re.DOTALL)
    assert found
    numbers: dict[str, Any] = json.loads(found[1])
    return numbers


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "type: python -m tools.calculator"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = PAGE.read_text()
    assert not re.search(r"https?://|src=|<link|@import|url\(|fetch\(|\{\{", text)


def test_its_numbers_are_those_of_the_planner() -> None:
    numbers = embedded()
    assert tuple(numbers["rungs"]) == RUNGS
    assert numbers["tight_bytes"] == TIGHT_BYTES
    assert list(numbers["models"]) == ["qwen38-27b", "qwen36-27b", "qwen36-35b-a3b"]
    shown = {
        name: KvFormat(name, Plane(**row["keys"]), Plane(**row["values"])) for name, row in numbers["formats"].items()
    }
    assert shown == FORMATS
    assert len(shown) == 7
    for name, row in numbers["models"].items():
        facts = facts_of_catalog(name, DEFAULT_CATALOG)
        assert Geometry(**row["geometry"]) == facts.geometry
        assert Weights(**row["weights"]) == facts.weights
    published = numbers["engines"]["reference"]["models"]["qwen38-27b"]
    assert published["workspace"]["plain"]["1024"] == 159_981_568, "spec/memory-and-fit.md §1.3"
    assert numbers["engines"]["reference"]["graphs"]["dflash2"][6] == [
        [8192, 0, 288 * MIB],
        [262_144, 0, 384 * MIB],
    ], "§1.4"
    assert numbers["engines"]["torch"]["context_bytes"] == TORCH.context_bytes


def test_profiles_fill_the_form() -> None:
    profiles = embedded()["profiles"]["qwen38-27b"]
    assert list(profiles) == ["tuned", "tuned-mtp", "tuned-none", "int8", "c8"]
    assert profiles["c8"] == {
        "context": 8192, "lanes": 8, "pool": 16_384, "format": "int8", "chunk": 512, "fp16": False, "backend": "mtp",
        "drafts": 3, "head": True, "experts_q4": False, "cublas": False, "vision": False, "slots": 8,
    }  # fmt: skip


def test_longest_context_is_the_last_that_fits() -> None:
    request = request_of(question(random.Random(5)) | {"model": "qwen38-27b", "free": 20 * GIB, "pool": None})
    request = dataclasses.replace(request, settings=Settings(kv_dtype="int8"), fallback=False, lanes=1)
    longest = longest_context(request, TORCH)
    assert 0 < longest < 262_144
    assert make(dataclasses.replace(request, max_context=longest), TORCH).left_bytes >= 0
    with pytest.raises(NoPlanError):
        make(dataclasses.replace(request, max_context=longest + 1), TORCH)
    page_bytes = key_value_bytes(request.geometry, FORMATS["int8"]) * 64
    more = dataclasses.replace(request, free_bytes=request.free_bytes + 100 * (page_bytes + 4))
    assert longest_context(more, TORCH) == longest + 6400


def question(rng: random.Random) -> Question:
    """One state of the form, with bytes of the card that others leave."""
    name = rng.choice(list(MODELS))
    backend = rng.choice(backends(MODELS[name]))
    lanes = rng.choice((1, 1, 2, 3, 8))
    context = rng.choice((*RUNGS, rng.randint(1, 262_144), rng.randint(1, 10_000), 4096, 4097, 8192, 8193, 300_000))
    pool = rng.choice((None, None, "auto", rng.randint(1, lanes * context)))
    return {
        "engine": rng.choice(("torch", "reference")),
        "model": name,
        "format": rng.choice(list(FORMATS)),
        "backend": backend,
        "drafts": 0 if backend == "none" else rng.randint(1, 15),
        "head": backend != "none" and rng.random() < 0.5,
        "experts_q4": backend == "mtp" and rng.random() < 0.5,
        "chunk": rng.choice(CHUNKS),
        "cublas": rng.random() < 0.5,
        "fp16": rng.random() < 0.5,
        "vision": rng.random() < 0.5,
        "slots": rng.choice((None, None, 0, 4)),
        "context": context,
        "lanes": lanes,
        "pool": pool,
        "free": rng.choice((24, 24, 24, 32, 48)) * GIB - rng.randint(0, 6 * GIB),
    }


def request_of(asked: Question) -> Request:
    model = MODELS[asked["model"]]
    speculation = Speculation(asked["backend"], asked["drafts"], asked["head"])
    return Request(
        model=asked["model"],
        device="a card",
        geometry=model.geometry,
        settings=Settings(
            kv_dtype=asked["format"],
            speculation=speculation,
            prefill_chunk=asked["chunk"],
            prefill_cublas=asked["cublas"],
            state_fp16=asked["fp16"],
            vision="overlay" if asked["vision"] else "off",
            device_state_slots=asked["slots"],
        ),
        weight_bytes=model.device_bytes(speculation, mtp_experts_q4=asked["experts_q4"]),
        free_bytes=asked["free"],
        max_context=asked["context"],
        lanes=asked["lanes"],
        kv_capacity=asked["pool"],
        explicit=frozenset({"kv_capacity"}) if isinstance(asked["pool"], int) else frozenset(),
    )


def expected(asked: Question) -> dict[str, Any]:
    request, constants = request_of(asked), RECORDS[asked["engine"]]
    try:
        made: Plan | None = make(request, constants)
    except NoPlanError as error:
        made, rejected = None, error.rejected
    except ConfigurationError:
        return {"problem": True}
    else:
        assert made is not None
        rejected = made.rejected
    return {
        "plan": made
        and {
            "context": made.max_context,
            "lanes": made.lanes,
            "capacity": made.kv_capacity,
            "headroom": made.headroom_bytes,
            "left": made.left_bytes - made.headroom_bytes,
            "ledger": made.ledger,
        },
        "rejected": [
            {"context": row.max_context, "lanes": row.lanes, "short": row.short, "ledger": row.ledger}
            for row in rejected
        ],
        "longest": longest_context(request, constants),
    }


# What both runners evaluate: the page's planner over the questions, reduced to plain values.
ANSWER = """
function answer(planner, asked) {
  const found = planner.plan(asked);
  if (found.problem) return { problem: true };
  const plan = found.plan && {
    context: found.plan.context, lanes: found.plan.lanes, capacity: found.plan.capacity,
    headroom: found.plan.headroom, left: found.plan.left, ledger: found.plan.ledger,
  };
  const rejected = found.rejected.map(
    (row) => ({ context: row.context, lanes: row.lanes, short: -row.left, ledger: row.ledger }));
  return { plan, rejected, longest: planner.longest(asked) };
}
"""
RNG = random.Random(20_261_130)
QUESTIONS = [question(RNG) for _ in range(200)]


def test_the_questions_cover_every_kind_of_answer() -> None:
    answers = [expected(asked) for asked in QUESTIONS]
    assert sum("problem" in found for found in answers) >= 5
    plans = [found for found in answers if "problem" not in found]
    assert sum(found["plan"] is None for found in plans) >= 10
    assert sum(found["plan"] is not None and bool(found["rejected"]) for found in plans) >= 10
    assert sum(found["plan"] is not None and not found["rejected"] for found in plans) >= 10
    assert {asked["format"] for asked in QUESTIONS} == set(FORMATS)
    assert {asked["backend"] for asked in QUESTIONS} == {"none", "mtp", "dflash", "dflash2"}


def compare(answers: list[dict[str, Any]]) -> None:
    for asked, answer in zip(QUESTIONS, answers, strict=True):
        assert answer == expected(asked), asked


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node; the nightly test asks a browser")
def test_node_plans_what_python_plans(tmp_path: Path) -> None:
    planner = re.search(r"<script>\n(// The planner .*?)</script>", PAGE.read_text(), re.DOTALL)
    assert planner
    script = tmp_path / "ask.js"
    asked = json.dumps({"numbers": embedded(), "questions": QUESTIONS})
    script.write_text(
        f"{planner[1]}\n{ANSWER}\nconst asked = {asked};\nconst planner = makePlanner(asked.numbers);\n"
        "console.log(JSON.stringify(asked.questions.map((one) => answer(planner, one))));\n"
    )
    done = subprocess.run(["node", str(script)], capture_output=True, text=True, check=True, timeout=60)
    compare(json.loads(done.stdout))


def chromium(*arguments: str) -> str:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
    done = subprocess.run([program, *flags, *arguments], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


browser = pytest.mark.skipif(
    shutil.which("chromium") is None and shutil.which("chromium-browser") is None,
    reason="needs chromium: tools/nightly_packages.sh",
)


@pytest.mark.nightly
@browser
def test_the_page_plans_what_python_plans(tmp_path: Path) -> None:
    copy = tmp_path / "fit.html"
    ask = (
        f"<script>{ANSWER}\nconst questions = {json.dumps(QUESTIONS)};\n"
        "const answers = document.createElement('pre');\nanswers.id = 'answers';\n"
        "answers.textContent = JSON.stringify(questions.map((one) => answer(planner, one)));\n"
        "document.body.append(answers);</script>"
    )
    copy.write_text(PAGE.read_text().replace("</body>", f"{ask}</body>"))
    dumped = re.search(r'<pre id="answers">(.*?)</pre>', chromium("--dump-dom", copy.as_uri()), re.DOTALL)
    assert dumped
    compare(json.loads(html.unescape(dumped[1])))


FORM = "model=qwen38-27b&format=rk4v4&backend=dflash2&drafts=7&head=1&engine=torch&pool_mode=context&chunk=4096"


@pytest.mark.nightly
@browser
@pytest.mark.parametrize(
    ("address", "held"),
    [("&context=262144&lanes=1&fp16=1&cublas=1&vision=1", 310), ("&context=196608&lanes=2", 1200)],
)
def test_a_link_states_a_question_and_the_page_shows_the_answer(address: str, held: int) -> None:
    dom = chromium("--dump-dom", f"{PAGE.as_uri()}#{FORM}{address}&card=24576&held={held}")
    words = dict(part.split("=") for part in f"{FORM}{address}".split("&"))
    asked = question(random.Random(1)) | {
        "engine": "torch", "model": "qwen38-27b", "format": "rk4v4", "backend": "dflash2", "drafts": 7, "head": True,
        "experts_q4": False, "chunk": 4096, "pool": None, "slots": None, "fp16": "fp16" in words,
        "cublas": "cublas" in words, "vision": "vision" in words, "context": int(words["context"]),
        "lanes": int(words["lanes"]), "free": (24_576 - held) * MIB,
    }  # fmt: skip
    answer = expected(asked)
    shown = dict(re.findall(r'data-([a-z]+)="([^"]*)"', dom))
    assert shown["longest"] == str(answer["longest"])
    assert shown["rejected"] == str(len(answer["rejected"]))
    assert shown["context"] == str(answer["plan"]["context"])
    assert shown["lanes"] == str(answer["plan"]["lanes"])
    left = -answer["rejected"][0]["short"] if answer["rejected"] else answer["plan"]["left"]
    assert shown["left"] == str(left)
    assert shown["verdict"] == ("does not fit" if left < 0 else "tight" if left < TIGHT_BYTES else "fits")
    assert f"{answer['longest']:,} tokens" in dom


@pytest.mark.nightly
@browser
def test_choosing_a_model_and_a_profile_fills_the_form_and_nothing_overflows_a_phone(tmp_path: Path) -> None:
    choose = """
    function choose(id, value) {
      element(id).value = value;
      element(id).dispatchEvent(new Event("input", { bubbles: true }));
    }
    const seen = [];
    for (const [model, profiles] of Object.entries(numbers.profiles)) {
      choose("model", model);
      seen.push([model, element("profile").value, readForm()]);
      for (const profile of Object.keys(profiles)) {
        choose("profile", profile);
        seen.push([model, profile, readForm()]);
      }
    }
    choose("pool_mode", "tokens");
    choose("pool", "100");
    choose("lanes", "8");
    const report = document.createElement("pre");
    report.id = "report";
    report.textContent = JSON.stringify({
      seen, own: element("profile").value, verdict: element("verdict").dataset.verdict,
      width: document.documentElement.scrollWidth, window: innerWidth, link: location.hash,
    });
    document.body.append(report);
    """
    copy = tmp_path / "fit.html"
    copy.write_text(PAGE.read_text().replace("</body>", f"<script>{choose}</script></body>"))
    dom = chromium("--window-size=360,800", "--dump-dom", copy.as_uri())
    found = re.search(r'<pre id="report">(.*?)</pre>', dom, re.DOTALL)
    assert found
    report = json.loads(html.unescape(found[1]))
    profiles = embedded()["profiles"]
    assert len(report["seen"]) == sum(len(rows) + 1 for rows in profiles.values())
    for model, profile, form in report["seen"]:
        row = profiles[model][profile]
        plain = row["backend"] == "none"
        pool = None if row["pool"] == row["context"] else row["pool"]
        wanted = row | {"pool": pool, "drafts": 0 if plain else row["drafts"], "head": row["head"] and not plain}
        assert {name: form[name] for name in wanted} == wanted, (model, profile)
    assert report["own"] == "", "what differs from a profile is not called by its name"
    assert report["verdict"] == "problem", "eight lanes need eight pages"
    assert report["width"] <= report["window"] < 820
    assert "pool=100" in report["link"]
