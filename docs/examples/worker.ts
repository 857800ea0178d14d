// A worker in TypeScript, on plain fetch.

declare const process: { env: Record<string, string | undefined>; pid: number };

const api = (process.env.CODEQ_HTTP_URL ?? "http://127.0.0.1:8080") + "/v1/codeq";
const token = process.env.CODEQ_TOKEN ?? "dev-token";
const workerId = `typescript-${process.pid}`;

type Task = { id: string; payload: string; fence: number };
type Payload = { image: number };

/** Returns the server's response, or undefined if it has no body. */
async function call<T>(path: string, body: object): Promise<T | undefined> {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const response = await fetch(api + path, { method: "POST", headers, body: JSON.stringify(body) });
  const text = await response.text();
  if (!response.ok) throw new Error(text);
  return text ? (JSON.parse(text) as T) : undefined;
}

function resize(payload: Payload): object {
  if (payload.image < 1) throw new Error(`no such image: ${payload.image}`);
  return { image: payload.image, width: 640 };
}

/** Waits up to 20 seconds for a task and processes it. */
async function work(): Promise<void> {
  const claim = { commands: ["resize"], workerId, leaseSeconds: 60, waitSeconds: 20 };
  const task = await call<Task>("/tasks/claim", claim);
  if (!task) return;
  const lease = { workerId, fence: task.fence };
  let result: object;
  try {
    result = resize(JSON.parse(task.payload) as Payload);
  } catch (error) {
    await call(`/tasks/${task.id}/nack`, { ...lease, reason: String(error) });
    return;
  }
  await call(`/tasks/${task.id}/result`, { ...lease, status: "COMPLETED", result });
}

async function main(): Promise<void> {
  for (;;) {
    try {
      await work();
    } catch (error) {
      // The server is unreachable or refused the call, for example because the lease has ended.
      console.error(String(error));
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

void main();
