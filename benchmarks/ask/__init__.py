"""hearthbench: 60 requests in words on the simulated board, scored by what the lines and devices did, never by words.

    python -m benchmarks.ask [--subject NAME] [--task PATTERN] [--base-url URL --model NAME] [--record DIR]

`tasks` has the requests, each with what it may change; `bench` runs one against one subject, in a runtime of its own;
`subjects` are the models: a scripted perfect one, a scripted malicious one, recorded transcripts, a real endpoint.
"""
