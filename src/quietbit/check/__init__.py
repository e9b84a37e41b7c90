"""What a job of an engine proves: read, never run.

Idea     files become uses of classes with values (`reader`, `program`, `nvflare`, `flower`); a law
         says of every class what leaves, its sensitivity, its noise and how often (`law`; one file
         per engine); a verdict compares what is proven with what is claimed (`verdict`).
"""
