// The Anthropic library for Node: a message, a stream, a tool over two turns.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const { MESH_BASE_URL, MESH_API_KEY, MESH_MODEL, MESH_SCRIPTED_MODEL } = process.env;
const client = new Anthropic({ baseURL: MESH_BASE_URL.replace(/\/v1$/, ""), apiKey: MESH_API_KEY, maxRetries: 0 });
const hi = { model: MESH_MODEL, max_tokens: 8, messages: [{ role: "user", content: "Hi" }] };
const whole = await client.messages.create(hi);
assert(whole.content[0].text.length > 0);
const final = await client.messages.stream(hi).finalMessage();
assert(final.usage.output_tokens <= 8);

const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", description: "Weather of a city", input_schema }];
const messages = [{ role: "user", content: "[weather] How is it in Paris?" }];
const called = await client.messages.stream({ model: MESH_SCRIPTED_MODEL, max_tokens: 256, tools, messages }).finalMessage();
assert.equal(called.stop_reason, "tool_use");
const use = called.content.find((block) => block.type === "tool_use");
assert.deepEqual(use.input, { city: "Paris" });
messages.push({ role: "assistant", content: called.content });
messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "18 degrees" }] });
const answer = await client.messages.create({ model: MESH_SCRIPTED_MODEL, max_tokens: 256, tools, messages });
assert.match(answer.content[0].text, /18 degrees/);
