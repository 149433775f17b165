"""Commands of `weft bench` and `weft study`; an entry point makes them known to `weft`."""

GROUPS = {
    "bench": ("time weft side by side with other libraries", "weft_lab.commands.bench"),
    "study": ("rerun the papers' experiments on this machine", "weft_lab.commands.study"),
}
