// llama.cpp by node-llama-cpp: a sequence for each caller, batched by the library.
import {createInterface} from "node:readline";
import {getLlama} from "node-llama-cpp";

const [path, threads, most] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", maxThreads: Number(threads), logLevel: "error"});
const model = await llama.loadModel({modelPath: path});
const context = await model.createContext({
    sequences: Number(most), contextSize: 256, batchSize: 512, threads: Number(threads)
});
const now = () => performance.now() / 1000;
const sequences = Array.from({length: Number(most)}, () => context.getSequence());
const cpu = () => { const used = process.cpuUsage(); return (used.user + used.system) / 1e6; };

async function answer({prompts, tokens, late}) {
    const submitted = prompts.map(() => now());
    const times = prompts.map(() => []);
    let join;
    const joined = new Promise((resolve) => { join = resolve; });
    await Promise.all(prompts.map(async (prompt, caller) => {
        const sequence = sequences[caller];
        await sequence.clearHistory();
        if (late !== null && caller === prompts.length - 1) await joined;
        submitted[caller] = now();
        const stream = sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true});
        for await (const _ of stream) {
            times[caller].push(now());
            if (late !== null && caller === 0 && times[0].length === late) join();
            if (times[caller].length === tokens) break;
        }
    }));
    return {submitted, times};
}

console.log(JSON.stringify("ready"));
for await (const line of createInterface({input: process.stdin})) {
    const before = cpu();
    const found = await answer(JSON.parse(line));
    console.log(JSON.stringify({...found, cpu: cpu() - before}));
}
process.exit(0);
