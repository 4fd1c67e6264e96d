"""Compares `rendered` with jinja2, set as transformers sets it.

    compare.py RENDERED [FOLDER]

FOLDER has templates (*.jinja); default: those of the installed package trl. Where jinja2 stops with an error, ours must, too; our error
that names what is not supported counts as different.
"""
import datetime
import glob
import importlib.util
import json
import os
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1753968600  # 31 July 2025
COMPILED = {}


class Generation(jinja2.ext.Extension):
    """Puts marks around what {% generation %} writes; they are taken out behind the rendering."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller):
        return "\x01" + caller() + "\x02"


def environment():
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(
        NOW, datetime.timezone.utc).strftime(f)
    return env


def expected(env, template, variables):
    try:
        if template not in COMPILED:
            COMPILED[template] = env.from_string(template)
        marked = COMPILED[template].render(**variables)
    except Exception as error:  # whatever a template does to Python
        return {"error": f"{type(error).__name__}: {error}"}
    text, spans, at = b"", [], 0
    for c in marked.encode():
        if c in (1, 2):
            spans.append(len(text))
        else:
            text += bytes([c])
    return {"text": text.decode(), "spans": spans}


TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Größe & <b>Wetter</b> \"heute\"", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string", "description": "the city", "enum": ["Köln", "東京"]},
            "days": {"type": ["integer", "null"], "default": 3},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
            "list": {"type": "array", "items": {"type": "string"}, "nullable": True}},
        "required": ["city"]}, "return": {"type": "string", "description": "text"}}}
CALL = {"type": "function", "id": "call12345", "function": {"name": "weather", "arguments": {
    "city": "Köln", "days": 2.5, "list": ["a", "b'c"], "deep": {"x": None, "y": True}}}}
S, U = {"role": "system", "content": "Be  brief.\n"}, {"role": "user", "content": " Hallo 東京 🙂? "}
A = {"role": "assistant", "content": "Ja — <think>\nhm\n</think>\n\nnein 🙂.\n"}
THINK = {"role": "assistant", "content": "So.", "reasoning_content": "\nBecause\n", "thinking": "Because"}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": "{\"t\": 21}"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "image"}, {"type": "text", "text": " this?"}]}
CONVERSATIONS = [[U], [U, A], [S, U, A, U], [S, U, A, U, THINK], [S, U, CALLS, RESULT, A],
                 [U, CALLS, RESULT, RESULT, THINK, U, A], [PARTS, A], [A], [], [U, U], [S],
                 [U, THINK, U, CALLS, RESULT]]


def cases():
    for messages in CONVERSATIONS:
        for prompt in (False, True):
            for more in ({}, {"tools": [TOOL, TOOL]}, {"enable_thinking": False},
                         {"enable_thinking": True, "tools": [TOOL]}):
                yield {"messages": messages, "add_generation_prompt": prompt, "bos_token": "<s>",
                       "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", **more}


def templates(folder):
    if not folder:
        found = importlib.util.find_spec("trl")
        folder = os.path.join(found.submodule_search_locations[0], "chat_templates") if found else None
    for path in sorted(glob.glob(folder + "/*.jinja")):
        with open(path, encoding="utf-8", newline="") as f:
            yield os.path.basename(path), f.read()


def main():
    env, lines, names, wanted = environment(), [], [], []
    for name, template in templates(sys.argv[2] if len(sys.argv) > 2 else None):
        for i, variables in enumerate(cases()):
            lines.append(json.dumps([template, variables]))
            names.append(f"{name} case {i}")
            wanted.append(expected(env, template, variables))
    got = subprocess.run([sys.argv[1], str(NOW)], input="\n".join(lines) + "\n", text=True,
                         stdout=subprocess.PIPE, check=True).stdout.splitlines()
    assert len(got) == len(wanted), (len(got), len(wanted))
    wrong, errors = 0, 0
    for name, line, want in zip(names, got, wanted):
        have = json.loads(line)
        if "error" in want:
            same = have.get("error", "").startswith("invalid: ")
            errors += same
        else:
            same = have == want
        wrong += not same
        if not same and wrong <= 10:
            print(f"{name}:\n  jinja2 {json.dumps(want)[:1500]}\n  heddle {json.dumps(have)[:1500]}")
    if not names:
        print("no template was found")
        return True
    kinds = len({n.split(" case")[0] for n in names})
    print(f"{len(names)} texts of {kinds} templates, {errors} refused by both, {wrong} differ")
    return wrong > 0


sys.exit(main())
