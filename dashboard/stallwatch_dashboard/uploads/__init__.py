"""Accept and read uploaded files, within permissions and limits."""
