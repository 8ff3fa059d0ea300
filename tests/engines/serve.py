"""serve.py - an engine for tests: reads a line of JSON from standard input, writes one to standard output.

usage: serve.py OPTIONS      a JSON object with arguments of vllm.LLM

The first line that it writes is {"ready": ...}. Then, for {"prompts": [[token, ...], ...], "tokens": N}, it answers
{"answers": [[[token, ...], cached tokens], ...], "seconds": S}; "adapter" beside "tokens" has the arguments of a
LoRARequest. For {"call": NAME, "arguments": [...]} it calls a method of vllm.LLM and answers {"error": TEXT}, which is
empty unless it has failed. For {"metric": NAME} it answers {"value": N}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Dict


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    options: Dict[str, Any] = json.loads(sys.argv[1])
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    from vllm.lora.request import LoRARequest

    transfer = options.pop("kv_transfer_config", None)
    if transfer:
        options["kv_transfer_config"] = KVTransferConfig(**transfer)
    begin = time.monotonic()
    engine = LLM(**options)
    print(json.dumps({"ready": time.monotonic() - begin}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "call" in asked:
            try:
                getattr(engine, asked["call"])(*asked["arguments"])
                error = ""
            except Exception as failed:
                error = repr(failed)
            print(json.dumps({"error": error}), file=out, flush=True)
            continue
        if "metric" in asked:
            values = [each.value for each in engine.get_metrics() if each.name == asked["metric"]]
            print(json.dumps({"value": sum(values)}), file=out, flush=True)
            continue
        parameters = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
        begin = time.monotonic()
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        adapter = LoRARequest(*asked["adapter"]) if asked.get("adapter") else None
        answers = engine.generate(prompts, parameters, use_tqdm=False, lora_request=adapter)
        made = [[list(answer.outputs[0].token_ids), answer.num_cached_tokens] for answer in answers]
        seconds = time.monotonic() - begin
        first = [answer.metrics.first_token_latency for answer in answers if answer.metrics]
        print(json.dumps({"answers": made, "seconds": seconds, "first": first}), file=out, flush=True)


if __name__ == "__main__":
    main()
