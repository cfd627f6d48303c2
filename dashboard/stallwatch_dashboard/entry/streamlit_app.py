"""The script that Streamlit runs for every reader.

It lies alone: beside a folder named pages/, Streamlit would take the files in there for pages of its own
navigation, and show them without the frame around them.
"""

from stallwatch_dashboard.app import main

main()
