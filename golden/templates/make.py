#!/usr/bin/env python3
"""Renders every *.jinja of a folder with Jinja2, set up as in Hugging Face `transformers`, into expected.json.

    pip install jinja2==3.1.6
    make.py [FOLDER]

Each case of expected.json holds the template's file name, what it is rendered with, and the text or `null` where the
template rejects the conversation.
"""

import datetime
import json
import pathlib
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
NOW = datetime.datetime(2024, 2, 29, 12, 34, 56, tzinfo=datetime.timezone.utc)

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather <now> in a city's \"centre\" & suburbs; naïve.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
                   "required": ["city"]}}}
CALL = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}

CONVERSATIONS = {
    "one turn": {"messages": [{"role": "user", "content": "Hi <there> & 'all'"}]},
    "system": {"messages": [{"role": "system", "content": " Be brief. \n"}, {"role": "user", "content": "Why?\n"}]},
    "three turns": {"messages": [{"role": "user", "content": "One"}, {"role": "assistant", "content": " Two "},
                                 {"role": "user", "content": "Three 🦙"}]},
    "thinking": {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n2"},
                              {"role": "user", "content": "sure?"}], "enable_thinking": False},
    "ends with assistant": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                            "add_generation_prompt": False},
    "tools": {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Weather?"}], "tools": [TOOL]},
    "tool result": {"messages": [{"role": "user", "content": "Weather?"},
                                 {"role": "assistant", "content": "", "tool_calls": [CALL]},
                                 {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"t\": 21.5}"},
                                 {"role": "assistant", "content": "21.5"}, {"role": "user", "content": "Thanks"}], "tools": [TOOL]},
    "two users": {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    "nothing": {"messages": []},
}


class Generation(Extension):
    """`{% generation %}`: what it encloses, as `transformers` renders it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_keep"), [], [], body).set_lineno(line)

    def _keep(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def main():
    cases = []
    for path in sorted(FOLDER.glob("*.jinja")):
        template = environment().from_string(path.read_text())
        for name, given in CONVERSATIONS.items():
            context = {"tools": None, "add_generation_prompt": True, **given}
            try:
                text = template.render(bos_token="<s>", eos_token="</s>", **context)
            except (jinja2.exceptions.TemplateError, TypeError, KeyError, ValueError) as error:
                print(path.name, name, repr(error))
                text = None
            cases.append({"template": path.name, "case": name, "given": given, "text": text})
    (FOLDER / "expected.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


main()
