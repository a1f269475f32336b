"""litellm: chat and stream through its OpenAI way, a tool call, and its Anthropic way."""

import json
import os

import litellm

BASE, KEY = os.environ["MESH_BASE_URL"], os.environ["MESH_API_KEY"]
openai_way = {"api_base": BASE, "api_key": KEY, "num_retries": 0}
hi = [{"role": "user", "content": "Hi"}]
answer = litellm.completion(model=f"openai/{os.environ['MESH_MODEL']}", messages=hi, max_tokens=8, **openai_way)
assert answer.choices[0].message.content and answer.usage.completion_tokens <= 8
stream = litellm.completion(model=f"openai/{os.environ['MESH_MODEL']}", messages=hi, max_tokens=8, stream=True, **openai_way)
assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)
schema = {"type": "object", "properties": {"city": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": schema}}]
weather = [{"role": "user", "content": "[weather] How is it in Paris?"}]
scripted = os.environ["MESH_SCRIPTED_MODEL"]
called = litellm.completion(model=f"openai/{scripted}", messages=weather, tools=tools, **openai_way)
assert json.loads(called.choices[0].message.tool_calls[0].function.arguments) == {"city": "Paris"}
anthropic_way = {"api_base": BASE.removesuffix("/v1"), "api_key": KEY, "num_retries": 0}
called = litellm.completion(model=f"anthropic/{scripted}", messages=weather, tools=tools, max_tokens=256, **anthropic_way)
assert called.choices[0].message.tool_calls[0].function.name == "get_weather", called
