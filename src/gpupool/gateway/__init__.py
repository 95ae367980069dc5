"""The gateway: one OpenAI-compatible address in front of every chute that speaks that API.

A request is read and checked (`reading`), an endpoint is chosen from the feed's last view (`routing`), the request is
sent there and the answer passed back as it comes (`forwarding`), with the model's name as the client said it
(`naming`, `streams`; towards the server as it says it: `aliases`). Every fault leaves in OpenAI's shape (`faults`).
"""
