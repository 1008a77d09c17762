"""Makes the embedded models `nano` (dense) and `nano-moe`: tokenizer, data, training, evaluation, artifacts.

Until a trained checkpoint is exported, `etc/nano/nano.ninfer` holds random weights (`python -m tools.nano.build`).

A machine with a network prepares (minutes; everything lies in `build/nano`, which git ignores):

    python -m tools.nano.data.prepare                     # corpus of free text: 12 M tokens, 9 MB in build/nano/corpus
    python -m tools.nano.data.sample lookup --count 3     # look at examples; --tokens marks token borders
    python -m tools.nano.tokenizer                        # only to learn another tokenizer; prepare again behind it

The machine with the GPU needs the source tree, `build/nano/corpus` and Python with torch, numpy, safetensors, and for
the workers tokenizers, jinja2, msgspec and ml_dtypes (bring wheels of those that it lacks). It needs no network:

    python -c 'import tokenizers, jinja2, msgspec, ml_dtypes, safetensors'        # first: is everything there?
    python -m tools.nano.train nano     --benchmark --out /tmp/b                  # tokens a second, memory; with and
    python -m tools.nano.train nano-moe --benchmark --out /tmp/b --compile        # without --compile, other --tokens
    python -m tools.nano.train nano     --minutes 8.3 --out /tmp/nano             # a run each
    python -m tools.nano.train nano-moe --minutes 8.3 --out /tmp/nano-moe

A run ends annealed when its minutes are over; add 40 seconds or so for examples, workers and a check-up.
`resume.pt` there lets the same command go on after a stop; it is large and stays there. To be carried home are
`log.jsonl` and the folder `checkpoint`: parts of at most 12 MiB, index, config.json. `--initial CHECKPOINT` begins
another run from them.

Back at home:

    python -m tools.nano.export nano     build/nano/trained/nano/checkpoint       # artifact, master in parts, pin
    python -m tools.nano.export nano-moe build/nano/trained/nano-moe/checkpoint
    python -m tools.nano.evaluate etc/nano/nano.ninfer --out build/nano/nano.json # pass rates, drafts, perplexity
    python -m tools.nano.evaluate etc/nano/master/nano.ninfer --tasks arithmetic,facts --show 5
"""
