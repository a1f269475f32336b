"""langchain-openai: bind_tools, a ToolMessage, the answer; a stream."""

import os

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return "18 degrees" if city == "Paris" else "?"


connection = {"base_url": os.environ["MESH_BASE_URL"], "api_key": os.environ["MESH_API_KEY"], "max_retries": 0}
llm = ChatOpenAI(model=os.environ["MESH_SCRIPTED_MODEL"], **connection).bind_tools([get_weather])
messages = [HumanMessage("[weather] How is it in Paris?")]
called = llm.invoke(messages)
assert [call["name"] for call in called.tool_calls] == ["get_weather"], called
messages += [called, *(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in called.tool_calls)]
answer = llm.invoke(messages)
assert "18 degrees" in answer.content and answer.usage_metadata["total_tokens"] > 0, answer
plain = ChatOpenAI(model=os.environ["MESH_MODEL"], max_tokens=8, **connection)
assert "".join(chunk.content for chunk in plain.stream("Hi")), "a stream"
