"""The anthropic library: messages, streams, tools over two turns, counting, errors."""

import os

import anthropic

BASE = os.environ["MESH_BASE_URL"].removesuffix("/v1")
client = anthropic.Anthropic(base_url=BASE, api_key=os.environ["MESH_API_KEY"], max_retries=0)
SPLIT, SCRIPTED = os.environ["MESH_MODEL"], os.environ["MESH_SCRIPTED_MODEL"]
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}

ask = {"model": SPLIT, "max_tokens": 12, "system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]}
answer = client.messages.create(**ask, extra_body={"temperature": 0})
assert answer.content[0].text and answer.usage.output_tokens <= 12
counted = client.messages.count_tokens(**{key: ask[key] for key in ("model", "system", "messages")})
assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens, (counted, answer.usage)
with client.messages.stream(**ask) as events:
    text = "".join(events.text_stream)
    assert text and events.get_final_message().usage.output_tokens <= 12

messages = [{"role": "user", "content": "[weather] How is it in Paris?"}]
ask = {"model": SCRIPTED, "max_tokens": 256, "tools": [TOOL]}
with client.messages.stream(**ask, messages=messages) as events:
    called = events.get_final_message()
assert called.stop_reason == "tool_use", called
use = next(block for block in called.content if block.type == "tool_use")
assert use.input == {"city": "Paris"}
messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in called.content]})
messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "18 degrees"}]})
answer = client.messages.create(**ask, messages=messages)
assert answer.stop_reason == "end_turn" and "18 degrees" in answer.content[0].text, answer

try:
    client.messages.create(model="none", max_tokens=1, messages=[{"role": "user", "content": "x"}])
except anthropic.NotFoundError as error:
    assert error.body["error"]["type"] == "not_found_error", error.body
else:
    raise AssertionError("an unknown model was answered")
