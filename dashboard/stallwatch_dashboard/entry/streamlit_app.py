"""The script that Streamlit runs for every reader.

It has a folder of its own: beside a folder named pages/, Streamlit would add the files in there to its own
navigation, and show them without the frame around them.
"""

from stallwatch_dashboard.app import main

main()
