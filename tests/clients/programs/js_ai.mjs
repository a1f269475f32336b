// The AI SDK with @ai-sdk/openai-compatible: text, stream, a tool run to its answer.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { MESH_BASE_URL, MESH_API_KEY, MESH_MODEL, MESH_SCRIPTED_MODEL } = process.env;
const mesh = createOpenAICompatible({ name: "mesh", baseURL: MESH_BASE_URL, apiKey: MESH_API_KEY, includeUsage: true });
const whole = await generateText({ model: mesh(MESH_MODEL), prompt: "Hi", maxOutputTokens: 8, maxRetries: 0 });
assert(whole.text.length > 0 && whole.usage.outputTokens <= 8);
let text = "";
for await (const piece of streamText({ model: mesh(MESH_MODEL), prompt: "Hi", maxOutputTokens: 8, maxRetries: 0 }).textStream) {
  text += piece;
}
assert(text.length > 0);
const asked = [];
const getWeather = tool({
  description: "Weather of a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => { asked.push(city); return "18 degrees"; },
});
const answer = await generateText({
  model: mesh(MESH_SCRIPTED_MODEL),
  prompt: "[weather] How is it in Paris?",
  tools: { get_weather: getWeather },
  stopWhen: stepCountIs(3),
  maxRetries: 0,
});
assert.deepEqual(asked, ["Paris"]);
assert.match(answer.text, /18 degrees/);
