// The openai library for Node: chat, stream, a tool over two turns, responses.
import assert from "node:assert/strict";
import OpenAI from "openai";

const { MESH_BASE_URL, MESH_API_KEY, MESH_MODEL, MESH_SCRIPTED_MODEL } = process.env;
const client = new OpenAI({ baseURL: MESH_BASE_URL, apiKey: MESH_API_KEY, maxRetries: 0 });
const ask = { model: MESH_MODEL, messages: [{ role: "user", content: "Hi" }], max_tokens: 8, temperature: 0 };
const whole = await client.chat.completions.create(ask);
assert(whole.usage.completion_tokens <= 8);
let text = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(text, whole.choices[0].message.content);

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const messages = [{ role: "user", content: "[weather] How is it in Paris?" }];
const called = (await client.chat.completions.create({ model: MESH_SCRIPTED_MODEL, messages, tools })).choices[0].message;
assert.deepEqual(JSON.parse(called.tool_calls[0].function.arguments), { city: "Paris" });
messages.push(called, { role: "tool", tool_call_id: called.tool_calls[0].id, content: "18 degrees" });
const answer = await client.chat.completions.create({ model: MESH_SCRIPTED_MODEL, messages, tools });
assert.match(answer.choices[0].message.content, /18 degrees/);

const response = await client.responses.create({ model: MESH_MODEL, input: "Hi", max_output_tokens: 8 });
assert(response.output_text.length > 0);
await assert.rejects(client.embeddings.create({ model: MESH_MODEL, input: "x" }), (error) => error.status === 400);
