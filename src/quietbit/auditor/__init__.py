"""The auditor and the doctor: does what is shipped keep what is claimed?"""
