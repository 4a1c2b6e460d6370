#!/usr/bin/env python3
"""Makes the expected values of tests/unit/test-jinja.c with Python's jinja2, set up as transformers
does it for chat templates.

    make.py [DATA]     DATA: the folder of public data that tests know as $NUMOE_TEST_DATA

small.json      small templates (from small.txt) with what they render to; null where jinja2 fails
templates.json  conversations, and what the public templates of DATA/templates make of each: a text,
                or {"error": the message}. Only the results are stored.

Needs the Python package jinja2. Two things are more generous than transformers: lists of the
variables may be changed, and tojson takes what map and select give.
"""
import datetime
import glob
import json
import os
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5)


class Generation(jinja2.ext.Extension):
    tags = {'generation'}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(['name:endgeneration'], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    def default(o):
        if hasattr(o, '__next__'):
            return list(o)
        raise TypeError(f'{type(o).__name__} is not JSON serializable')
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys, default=default)


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def environment():
    env = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters['tojson'] = tojson
    env.filters['from_json'] = json.loads
    env.globals['raise_exception'] = raise_exception
    env.globals['strftime_now'] = NOW.strftime
    return env


# ------------------------------------------------------------------ conversations

def tool(name, description, properties, required=(), **more):
    return {'type': 'function', 'function': {
        'name': name, 'description': description,
        'parameters': {'type': 'object', 'properties': properties, 'required': list(required)},
        **more}}


def call(name, arguments, id):
    return {'type': 'function', 'id': id, 'function': {'name': name, 'arguments': arguments}}


def message(role, content, **more):
    return {'role': role, 'content': content, **more}


WEATHER = tool('get_weather', 'The weather of a place.\nIn °C, "now".',
               {'city': {'type': 'string', 'description': ' Name of the city '},
                'unit': {'type': 'string', 'enum': ['C', 'F'], 'default': 'C'},
                'days': {'type': 'integer', 'minimum': 1, 'default': 3},
                'exact': {'type': 'boolean'}}, ['city'])
SEARCH = tool('search', 'Finds <things> & such.',
              {'query': {'type': ['string', 'null'], 'nullable': True},
               'tags': {'type': 'array', 'items': {'type': 'string'}},
               'where': {'type': 'object', 'properties': {
                   'from': {'type': 'number', 'default': 0.5}, 'any': {'type': 'array'}},
                   'required': ['from']},
               'which': {'oneOf': [{'type': 'string', 'description': 'by name'},
                                   {'type': 'number', 'default': 1e20}]}},
              ['query', 'tags'])
PING = tool('ping', 'Says pong.', {})

S, U, A, T = 'system', 'user', 'assistant', 'tool'
ARGS = {'city': 'Zürich "old"', 'days': 2, 'exact': True, 'list': [1, 'a\n', None, 2.50]}
CONVERSATIONS = {
    'user': dict(messages=[message(U, 'Tell me a story.')]),
    'system': dict(messages=[message(S, 'Be brief.\n'), message(U, ' Hi  ')]),
    'turns': dict(messages=[message(S, 'You are 善良.'), message(U, 'Hi'), message(A, 'Hello!\n'),
                            message(U, 'And <you>?'), message(A, '<think>\nwell\n</think>\n\nFine.'),
                            message(U, "It's \"over\" 😀")]),
    'no-prompt': dict(messages=[message(U, 'Hi'), message(A, 'Hello!')], add_generation_prompt=False),
    'thinking': dict(messages=[message(U, '1+1'), message(A, '2', reasoning_content='Easy.\n'),
                               message(U, '2+2')],
                     enable_thinking=True, thinking=True, reasoning_effort='high'),
    'not-thinking': dict(messages=[message(S, 'Answer.'), message(U, '1+1'),
                                   message(A, '2', reasoning_content='Easy.'), message(U, '2+2')],
                         enable_thinking=False, thinking=False, reasoning_effort='low'),
    'tools': dict(messages=[message(S, 'Use tools.'), message(U, 'Weather?')],
                  tools=[WEATHER, SEARCH, PING]),
    'tool-call': dict(messages=[message(U, 'Weather?'),
                                message(A, '', tool_calls=[call('get_weather', ARGS, 'call00001')])],
                      tools=[WEATHER], add_generation_prompt=False),
    'tool-result': dict(messages=[message(S, 'Use tools.'), message(U, 'Weather?'),
                                  message(A, '', tool_calls=[call('get_weather', ARGS, 'call00001')],
                                          reasoning_content='I look it up.'),
                                  message(T, '{"t": 21.5}', tool_call_id='call00001',
                                          name='get_weather')],
                        tools=[WEATHER, PING], enable_thinking=True, thinking=True),
    'tool-turns': dict(messages=[message(U, 'Both?'),
                                 message(A, 'I will.',
                                         tool_calls=[call('get_weather', {'city': 'A'}, 'call00001'),
                                                     call('ping', {}, 'call00002')]),
                                 message(T, 'rain', tool_call_id='call00001', name='get_weather'),
                                 message(T, 'pong', tool_call_id='call00002', name='ping'),
                                 message(A, 'Rain, and pong.'), message(U, 'Thanks')],
                       tools=[WEATHER, PING]),
    'tool-text-args': dict(messages=[message(U, 'Weather?'),
                                     message(A, '', tool_calls=[
                                         call('get_weather', '{"city": "B", "days": 1}', 'call00001')]),
                                     message(T, 'sun', tool_call_id='call00001', name='get_weather')],
                           tools=[WEATHER]),
    'parts': dict(messages=[message(U, [{'type': 'text', 'text': 'What is '},
                                        {'type': 'text', 'text': 'this?'}])]),
    'null-content': dict(messages=[message(U, 'Ping'),
                                   message(A, None, tool_calls=[call('ping', {}, 'call00001')])],
                         tools=[PING], add_generation_prompt=False),
    'developer': dict(messages=[message('developer', 'Be kind.'), message(U, 'Hi')]),
    'documents': dict(messages=[message(U, 'Read.')],
                      documents=[{'doc_id': 7, 'title': 'T', 'text': 'Text of it.'}],
                      controls={'citations': True}),
}
DEFAULTS = dict(bos_token='<BOS>', eos_token='<EOS>', add_generation_prompt=True, tools=None,
                documents=None, add_tokens={'role_sep': '<sep>', 'message_sep': '<end>'})


def render(template, variables):
    """Python's own messages of errors are not repeated by others, those of templates are."""
    variables = json.loads(json.dumps({**DEFAULTS, **variables}))
    try:
        return template.render(variables)
    except Raised as e:
        return {'error': str(e)}
    except Exception as e:
        print(f'{type(e).__name__}: {e}', file=sys.stderr)
        return {'error': ''}


def make_templates(data):
    env = environment()
    results = {}
    for path in sorted(glob.glob(os.path.join(data, 'templates', '*.jinja'))):
        name = os.path.basename(path)
        with open(path, encoding='utf-8', newline='') as f:
            template = env.from_string(f.read())
        for which, variables in CONVERSATIONS.items():
            print(f'{name}, {which}: ', end='', file=sys.stderr)
            results.setdefault(name, {})[which] = render(template, variables)
            print(file=sys.stderr)
    return {'defaults': DEFAULTS, 'conversations': CONVERSATIONS, 'templates': compact(results)}


def compact(results):
    """A text becomes [n, middle, m]: it begins with the first n bytes of the text of the template's
    conversation before, and ends with the last m bytes of it."""
    for texts in results.values():
        before = ''
        for which, text in texts.items():
            if not isinstance(text, str):
                continue
            n = len(os.path.commonprefix([before, text]))
            rest, old = text[n:][::-1], before[n:][::-1]
            m = len(os.path.commonprefix([rest, old]))
            middle = text[n:len(text) - m]
            texts[which] = [len(text[:n].encode()), middle, len(text[len(text) - m:].encode())]
            before = text
    return results


# ------------------------------------------------------------------ small templates

def make_small():
    """small.txt has a template a line, as a JSON string where it begins with a quote, behind "!"
    where it must fail; a line that begins with "vars:" sets the variables of those that follow."""
    env = environment()
    groups = []
    with open(os.path.join(HERE, 'small.txt'), encoding='utf-8') as f:
        for line in f.read().split('\n'):
            if line.startswith('vars:'):
                groups.append({'variables': json.loads(line[5:]), 'cases': []})
            elif line and not line.startswith('##'):
                fails = line.startswith('!')
                line = line[fails:]
                text = json.loads(line) if line.startswith('"') else line
                variables = json.loads(json.dumps(groups[-1]['variables']))
                try:
                    out = env.from_string(text).render(variables)
                except Exception as e:
                    out = None
                    if not fails:
                        raise Exception(f'{text} fails') from e
                if fails and out is not None:
                    raise Exception(f'{text} does not fail: {out}')
                groups[-1]['cases'].append([text, out])
    return groups


def dump(name, value, **form):
    with open(os.path.join(HERE, name), 'w', encoding='utf-8') as f:
        json.dump(value, f, ensure_ascii=False, **form)
        f.write('\n')


if __name__ == '__main__':
    dump('small.json', make_small(), indent=0)
    dump('templates.json',
         make_templates(sys.argv[1] if len(sys.argv) > 1
                        else os.path.join(HERE, '..', '..', '..', '..', 'shared')), indent=0)
