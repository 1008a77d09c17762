"""A scripted engine that does what coding clients ask for: `python -m tests.clients.coding_engine --config FILE`.

It reads the rendered prompt, as a model would. Asked to `write PATH saying WORDS.`, it calls the first declared tool
that can; once the result is there, it says so. Anything else gets a greeting.
"""

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.api.scripted_engine import Engine, Script, main, read

GREETING = "Hello from the scripted engine. 🌍"
DONE = "The file is written."
TASK = re.compile(r"write (\S+) saying ([a-z ]+)\.")


def _command(path: str, words: str) -> str:
    return f"printf '%s' '{words}' > '{path}'"


def _patch(path: str, words: str) -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+{words}\n*** End Patch\n"


# The tools of the clients, and what each wants to be told; the first that is declared is called.
WRITERS: dict[str, Callable[[str, str], dict[str, str]]] = {
    "Write": lambda path, words: {"file_path": path, "content": words},
    "write_file": lambda path, words: {"file_path": path, "content": words},
    "write": lambda path, words: {"filePath": path, "content": words},
    "exec_command": lambda path, words: {"cmd": _command(path, words)},
    "shell_command": lambda path, words: {"command": _command(path, words)},
    "shell": lambda path, words: {"command": json.dumps(["bash", "-c", _command(path, words)])},
    "apply_patch": lambda path, words: {"input": _patch(path, words)},
}


def declared(prompt: str) -> dict[str, dict[str, Any]]:
    """The tools that a prompt in Qwen's format declares, by name."""
    found = re.search(r"<tools>\n(.*?)\n</tools>", prompt, re.DOTALL)
    tools = [json.loads(line)["function"] for line in found[1].splitlines()] if found else []
    return {tool["name"]: tool for tool in tools}


def call(name: str, arguments: dict[str, str]) -> str:
    """A call in Qwen's format."""
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def answer(prompt: str) -> tuple[str, str]:
    """What is done, and the text that says it."""
    tasks = list(TASK.finditer(prompt))
    tools = declared(prompt)
    if not tasks or not tools:
        return "greet", GREETING
    # The task may be told again later, in a reminder: what counts is a result after its first mention.
    if "<tool_response>" in prompt[tasks[0].end() :]:
        return "finish", DONE
    name = next((name for name in WRITERS if name in tools), None)
    if name is None:
        return "lost", f"none of these tools writes: {', '.join(tools)}"
    return f"call {name}", "I write the file.\n\n" + call(name, WRITERS[name](tasks[-1][1], tasks[-1][2]))


class CodingEngine(Engine):
    def script_for(self, prompt: str) -> Script:
        done, text = answer(prompt)
        thinks = prompt.rstrip().endswith("<think>")
        sys.stdout.write(json.dumps({"event": "answer", "done": done, "thinks": thinks}) + "\n")
        return Script(text=f"Let me see.\n</think>\n\n{text}" if thinks else text, delay=0.001)


if __name__ == "__main__":
    asyncio.run(main(read(Path(sys.argv[2])), waits=False, make=CodingEngine))
