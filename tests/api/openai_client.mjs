// The official npm client against a server: `node openai_client.mjs BASE_URL MODEL PICTURE_DATA_URL`. Prints JSON.
import OpenAI from "openai";

const [baseURL, model, picture] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "Say something." }];
const greedy = { model, temperature: 0 };
const found = {};

found.models = (await client.models.list()).data.map((entry) => entry.id);
const chat = await client.chat.completions.create({ ...greedy, messages, max_tokens: 8 });
found.chat = chat.choices[0].message.content;

found.chatStream = "";
const options = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create({ ...greedy, messages, max_tokens: 8, ...options })) {
  found.chatStream += chunk.choices[0]?.delta?.content ?? "";
  found.usage = chunk.usage ?? found.usage;
}

const looking = [{ role: "user", content: [{ type: "text", text: "Who?" }, { type: "image_url", image_url: { url: picture } }] }];
found.pictureTokens = (await client.chat.completions.create({ ...greedy, messages: looking, max_tokens: 2 })).usage.prompt_tokens;

const completion = await client.completions.create({ ...greedy, prompt: "The cat", max_tokens: 4 });
found.completion = completion.choices[0].text;

const response = await client.responses.create({ ...greedy, input: "Say something.", max_output_tokens: 8 });
found.response = response.output_text;
const next = await client.responses.create({ ...greedy, input: "And?", previous_response_id: response.id, max_output_tokens: 2 });
found.continued = next.usage.input_tokens > response.usage.input_tokens;
found.retrieved = (await client.responses.retrieve(response.id)).output_text;

found.events = [];
found.responseStream = "";
for await (const event of await client.responses.create({ ...greedy, input: "Say something.", max_output_tokens: 8, stream: true })) {
  if (event.type === "response.output_text.delta") found.responseStream += event.delta;
  else found.events.push(event.type);
}

try {
  await client.chat.completions.create({ ...greedy, messages, temperature: 9 });
} catch (error) {
  found.error = { kind: error.constructor.name, status: error.status, param: error.param, id: error.requestID ?? error.request_id };
}
const many = { ...greedy, messages, max_tokens: 1000, stream: true, ignore_eos: true };
const left = await client.chat.completions.create(many);
for await (const _ of left) break; // leaves early: the request is given up
console.log(JSON.stringify(found));
