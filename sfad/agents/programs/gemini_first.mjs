import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";

const { env } = process;
const google = "https://generativelanguage.googleapis.com";
const gateway = "{address}";
const defaults = {defaults};
const shown = {shown};
const { existsSync, readFileSync } = fs;
const ask = globalThis.fetch;

delete env.GOOGLE_GEMINI_BASE_URL;

fs.existsSync = (path) => path === defaults || existsSync(path);
fs.readFileSync = (path, ...more) => (path === defaults ? shown : readFileSync(path, ...more));
syncBuiltinESMExports();

globalThis.fetch = (asked, ...more) => {
  const url = asked instanceof Request ? asked.url : String(asked);
  if (!url.startsWith(`${google}/`)) return ask(asked, ...more);
  env.GOOGLE_GEMINI_BASE_URL = gateway;
  env.NODE_OPTIONS = (env.NODE_OPTIONS ?? "").replace(`--import=${import.meta.url}`, "").trim();
  const led = gateway + url.slice(google.length);
  return ask(asked instanceof Request ? new Request(led, asked) : led, ...more);
};
