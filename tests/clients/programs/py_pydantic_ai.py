"""pydantic-ai: an agent with a tool, run to its answer."""

import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=os.environ["MESH_BASE_URL"], api_key=os.environ["MESH_API_KEY"])
agent = Agent(OpenAIChatModel(os.environ["MESH_SCRIPTED_MODEL"], provider=provider))
asked = []


@agent.tool_plain
def get_weather(city: str) -> str:
    """Weather of a city."""
    asked.append(city)
    return "18 degrees"


answer = agent.run_sync("[weather] How is it in Paris?")
assert asked == ["Paris"] and "18 degrees" in answer.output, (asked, answer)
