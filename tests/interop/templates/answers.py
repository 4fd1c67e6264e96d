"""Compares the places of answers that `rendered` finds in a published template with the marks of TRL's twin of it.

    answers.py RENDERED

TRL's wheel has published templates, NAME.jinja, and beside some of them NAME_training.jinja, which writes the same text
and marks answers with {% generation %}. Conversations for which both write the same text must have the same answers,
but for what the prompt of an answer already says (TRL counts `<|Assistant|>` or `<think>` of some models, which a
model is given) and for white space. The text itself must be that of transformers.
"""
import datetime
import glob
import importlib.util
import json
import os
import subprocess
import sys

import transformers.utils.chat_template_utils as utils

DAY = datetime.datetime(2025, 7, 31)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return DAY


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


CALL = {"type": "function", "id": "call12345", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "its name"}}, "required": ["city"]}}}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": "{\"t\": 21}"}
SYSTEM = {"role": "system", "content": "Be brief."}
CASES = [
    ([user("Hi"), answer("b1"), user("c"), answer("d.")], None),
    ([SYSTEM, user("Hi"), answer(" b1\n"), user("c"), answer("d.\n")], None),
    ([user("Hi"), answer("<think>\nhm\n</think>\n\nb1"), user("c"), answer("<think>\nho\n</think>\n\nd")], None),
    ([user("Hi"), answer("b1", reasoning_content="hm"), user("c"), answer("d", reasoning_content="ho")], None),
    ([user("x"), answer("x"), user("x"), answer("x"), user("x"), answer("x")], None),
    ([user("Hi"), answer("", tool_calls=[CALL]), RESULT, answer("b1"), user("c"), answer("d.")], [TOOL]),
    ([answer("b1"), user("c"), answer("d")], None),
    ([user("c"), answer("b1"), user("d")], None),
    ([user("c"), answer("<b1>"), user("c"), answer("<d>")], None),
]
# writes no prompt behind a result of a tool, so that a model must write `<|turn>model` itself
NO_PROMPT_BEHIND_TOOLS = {"diffusion_gemma.jinja"}


def theirs(template, messages, tools, marked):
    """The text, and the set of its characters that count; None: the template refuses the conversation."""
    try:
        texts, spans = utils.render_jinja_template([messages], tools=tools, chat_template=template,
                                                   return_assistant_tokens_mask=marked, bos_token="<s>", eos_token="</s>")
    except Exception:  # whatever a template does to Python
        return None, None
    return texts[0], {i for a, b in (spans[0] if spans else []) for i in range(a, b)}


def ours(line):
    have = json.loads(line)
    if "error" in have:
        return None, have["error"]
    text, spans = have["text"].encode(), have["spans"]
    at = [len(text[:b].decode()) for b in spans]
    return have["text"], {i for a, b in zip(at[::2], at[1::2]) for i in range(a, b)}


def differs(text, have, want):
    """Characters beside white space that count on one side alone, unless one of ours follows that they lead to."""
    extra = [i for i in have - want if not text[i].isspace()]
    for i in sorted(want - have):
        while i in want and i not in have:
            i += 1
        if i not in have:
            extra.append(i)
    return [i for i in extra if i < len(text) and not text[i].isspace()]


def main(program):
    utils.datetime = Clock
    found = importlib.util.find_spec("trl")
    folder = os.path.join(found.submodule_search_locations[0], "chat_templates")
    asked, lines = [], []
    for path in sorted(glob.glob(folder + "/*.jinja")):
        with open(path, encoding="utf-8", newline="") as f:
            template = f.read()
        for messages, tools in CASES:
            for loss in ("answers", "last"):
                asked.append((path, template, messages, tools, loss))
                line = {"messages": messages, **({"tools": tools} if tools else {})}
                lines.append(json.dumps([template, json.dumps(line), loss]))
    now = str(int(DAY.replace(tzinfo=datetime.timezone.utc).timestamp()))
    got = subprocess.run([program, now], input="\n".join(lines) + "\n", text=True, stdout=subprocess.PIPE,
                         check=True).stdout.splitlines()
    assert len(got) == len(asked)
    texts, twins, refused, wrong = 0, 0, set(), 0
    for (path, template, messages, tools, loss), line in zip(asked, got):
        name = os.path.basename(path)
        text, have = ours(line)
        want_text, _ = theirs(template, messages, tools, False)
        if want_text is None or text is None:
            if want_text is not None:
                refused.add((name, loss))
            continue
        texts += 1
        if text != want_text:
            wrong += 1
            print(f"{name}: the text differs\n  ours   {text!r}\n  theirs {want_text!r}")
        twin = path.replace(".jinja", "_training.jinja")
        if loss != "answers" or not os.path.exists(twin) or (tools and name in NO_PROMPT_BEHIND_TOOLS):
            continue
        with open(twin, encoding="utf-8", newline="") as f:
            twin_text, want = theirs(f.read(), messages, tools, True)
        if twin_text != text:
            continue
        twins += 1
        if differs(text, have, want):
            wrong += 1
            print(f"{name}: {messages}\n  {text!r}\n  ours   {''.join(text[i] for i in sorted(have))!r}"
                  f"\n  theirs {''.join(text[i] for i in sorted(want))!r}")
    # templates whose text does not tell, which the error says: their ends of turns differ with what follows
    print(f"{texts} texts, {twins} with a twin; refused: {sorted(refused)}")
    return wrong > 0 or texts < 500 or twins < 100


sys.exit(main(sys.argv[1]))
