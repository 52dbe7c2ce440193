#!/usr/bin/env python3
"""Make a model answer in JSON that a schema describes, or with one of a few words.

python examples/structured_output.py --model path/to/model
"""

from __future__ import annotations

import argparse
import json

from armllm import LLM, SamplingParams, StructuredOutputsParams

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 0, "maximum": 100_000_000},
        "on_a_river": {"type": "boolean"},
    },
    "required": ["name", "population", "on_a_river"],
    "additionalProperties": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Answers of a given form.")
    parser.add_argument("--model", required=True, help="folder of a model")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    arguments = parser.parse_args()

    llm = LLM(model=arguments.model, dtype=arguments.dtype)
    in_json = SamplingParams(max_tokens=200, seed=1, structured_outputs=StructuredOutputsParams(json=CITY))
    a_word = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["positive", "negative"]))
    city, mood = llm.generate(
        ["Describe Cologne as JSON: ", "Is 'What a lovely day!' positive or negative? "],
        [in_json, a_word],
        use_tqdm=False,
    )
    print(json.loads(city.outputs[0].text))
    print(mood.outputs[0].text)


if __name__ == "__main__":
    main()
