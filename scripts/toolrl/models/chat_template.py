"""A chat template that shows tools and their calls in the Hermes format, on ChatML turns."""

HERMES_ON_CHATML = """\
{{- '<|im_start|>system\\n' + messages[0].content }}
{%- if tools %}
{{- '\\n# Tools: to call one, write a JSON object with its name and arguments between tool_call tags.' }}
{%- for tool in tools %}
{{- '\\n' + tool | tojson }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages[1:] %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
