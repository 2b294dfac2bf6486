// Requests to the console. Each change is a POST with the token of this page.

export class Refused extends Error {}

async function answer(response) {
  let found;
  try {
    found = await response.json();
  } catch {
    throw new Refused(response.status === 403 ? "you are logged out: open a new link of sfactl web" : `the console answered ${response.status}`);
  }
  if (!response.ok) throw new Refused(found.error || `the console answered ${response.status}`);
  return found;
}

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("disconnected from the console: it does not answer");
  }
  return answer(response);
}

export const get = (path, signal) => asked(path, { signal });

export const post = (path, body = {}) =>
  asked(path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-csrf-token": document.body.dataset.token },
    body: JSON.stringify(body),
  });
