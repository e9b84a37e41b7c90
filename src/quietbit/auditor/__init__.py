"""The auditor and the doctor: does the shipped sampler keep its claims?"""
