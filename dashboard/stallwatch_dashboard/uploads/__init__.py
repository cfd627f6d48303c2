"""Accept and read uploaded files, subject to permissions and limits."""
