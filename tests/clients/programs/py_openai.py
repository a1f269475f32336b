"""The openai library: chat, streams, tools over two turns, parallel calls, structured output, responses, async."""

import asyncio
import json
import os

import openai
import pydantic

BASE, KEY = os.environ["MESH_BASE_URL"], os.environ["MESH_API_KEY"]
SPLIT, SCRIPTED = os.environ["MESH_MODEL"], os.environ["MESH_SCRIPTED_MODEL"]
client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)


def function(name):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "description": f"{name} of a city", "parameters": schema}}


TOOLS = [function("get_weather"), function("get_time")]
RESULTS = {"get_weather": "18 degrees", "get_time": "9 o'clock"}


def chat():
    assert {model.id for model in client.models.list()} >= {SPLIT, SCRIPTED}
    messages = [{"role": "user", "content": "Say something about Paris."}]
    ask = {"model": SPLIT, "messages": messages, "max_tokens": 16, "temperature": 0, "seed": 1}
    answer = client.chat.completions.create(**ask)
    assert answer.choices[0].message.content and answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content, (text, answer)
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens
    likely = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(likely) == 16 and all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in likely)
    choices = client.chat.completions.create(**{**ask, "n": 2, "temperature": 1}).choices
    assert [choice.index for choice in choices] == [0, 1]
    with client.chat.completions.with_streaming_response.create(**ask) as raw:
        assert raw.headers["x-request-id"]


def tools(marker, stream):
    messages = [{"role": "user", "content": f"[{marker}] How is it in Paris?"}]
    ask = {"model": SCRIPTED, "tools": TOOLS, "max_tokens": 256}
    if stream:
        with client.chat.completions.stream(**ask, messages=messages) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**ask, messages=messages).choices[0].message
    assert message.tool_calls, message
    messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
    for call in message.tool_calls:
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]})
    last = client.chat.completions.create(**ask, messages=messages).choices[0]
    assert last.finish_reason == "stop" and "18 degrees" in last.message.content, last
    return len(message.tool_calls)


class Weather(pydantic.BaseModel):
    """What structured output is parsed into."""

    city: str
    degrees: int


def structured():
    messages = [{"role": "user", "content": "[json] How is it in Paris?"}]
    answer = client.chat.completions.parse(model=SCRIPTED, messages=messages, response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(city="Paris", degrees=18), answer


def responses():
    tool = {"type": "function", "strict": False, **TOOLS[0]["function"]}
    items = [{"role": "user", "content": "[weather] How is it in Paris?"}]
    first = client.responses.create(model=SCRIPTED, input=items, tools=[tool], store=False)
    call = next(item for item in first.output if item.type == "function_call")
    assert call.id != call.call_id
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"})
    with client.responses.stream(model=SCRIPTED, input=items, tools=[tool], store=False) as events:
        kinds = [event.type for event in events]
        assert "18 degrees" in events.get_final_response().output_text
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds


def errors():
    for call, error in (
        (lambda: client.embeddings.create(model=SPLIT, input="x"), openai.BadRequestError),
        (lambda: client.chat.completions.create(model="none", messages=[{"role": "user", "content": "x"}]), openai.NotFoundError),
        (lambda: openai.OpenAI(base_url=BASE, api_key="wrong", max_retries=0).models.list(), openai.AuthenticationError),
    ):
        try:
            call()
        except error as seen:
            assert seen.body["message"], seen
        else:
            raise AssertionError(f"no {error.__name__}")


async def at_once():
    aclient = openai.AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)
    ask = {"model": SPLIT, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    answers = await asyncio.gather(*(aclient.chat.completions.create(**ask) for _ in range(4)))
    assert all(answer.usage.completion_tokens <= 8 for answer in answers)


chat()
assert [tools("weather", False), tools("weather", True), tools("both", False), tools("both", True)] == [1, 1, 2, 2]
responses()
errors()
asyncio.run(at_once())
structured()
