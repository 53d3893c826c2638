"""Groups of words with similar meanings, so that `tone` matches `sentiment`. English only. Pure.

Each line is one group. A word may be in several groups. Two words are related if a group contains
both. In the ranking, a related word counts less than the word itself (`ranking.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from core.planning.words import stem, words

# The most characters that are added to the text of a search.
ADDED_CHARS_MAX: Final = 600

_GROUPS: Final = """
fetch download retrieve crawl scrape grab visit read
page webpage website site url link web article
article story news blog
search google seek hunt locate discover lookup find
find spot recognise identify detect notice
summarise summary shorten condense digest gist abstract overview synopsis recap outline brief
translate translation render localise
language english german french spanish italian portuguese japanese chinese polish russian dutch
keyword topic theme subject tag term keyphrase about
sentiment tone mood emotion attitude feeling opinion polarity
sentiment tone mood positive negative upbeat happy angry cheerful hostile satisfied
classify categorise label category class tag bucket
proofread spelling grammar typo correct mistake misspelling
correct fix repair mend
entity person people company organisation who
entity named mentioned names
report briefing dossier memo
write compose draft author prepare
table spreadsheet csv row sheet dataset excel record line
clean tidy cleanse deduplicate normalise scrub duplicate
statistics total average mean median sum aggregate figure
count number quantity tally
chart plot graph diagram visualise
draw paint sketch illustrate picture
anomaly outlier unusual strange abnormal odd deviation irregular suspicious
price quote cost fee
stock share ticker equity symbol
forecast predict projection outlook future prognosis prediction
risk volatility danger dangerous exposure hazard
convert exchange change transform turn
currency money dollar euro pound yen franc
invoice bill receipt
tax vat duty levy
budget allowance spending
flight plane airline fly airfare
hotel room accommodation lodging hostel
weather rain temperature sunny snow climate
sight attraction landmark museum monument
itinerary schedule trip travel tour journey
city town
address location street place
coordinates latitude longitude geocode
route direction path navigation drive
distance kilometre mile far
image picture photo drawing illustration artwork
generate create make produce
caption describe description
resize shrink scale enlarge thumbnail
width pixel px size
object item thing
ocr scan scanned handwritten
transcribe transcript transcription dictation
recording audio podcast interview sound talk
speak speech aloud say narrate pronounce loud voice
subtitle caption
video film movie clip
clone checkout repository git
code source program software codebase script
review critique assess evaluate judge rate audit inspect
comment remark feedback note
test check verify validate
scan check inspect examine analyse
vulnerability weakness flaw security exploit loophole
log trace journal
diagnose cause why reason debug troubleshoot investigate
error crash failure fault bug outage exception incident
ticket issue bug case
submit file raise lodge open
email mail inbox
send deliver forward notify dispatch
post publish share announce
chat slack channel messenger
message note letter
extract parse pull
compare difference diff contrast versus
merge combine join unite concatenate
filter select pick choose
sort rank order arrange prioritise
delete remove erase drop discard strip
store save archive persist upload
calendar appointment meeting event
remind reminder alert notify
buy purchase order shop
pay payment transfer remit
customer client buyer
employee staff worker personnel
resume cv curriculum
job position vacancy opening role
skill competence ability qualification
contract agreement treaty
clause provision paragraph
legal law statute regulation
answer reply respond response
question ask query faq
explain clarify interpret
simplify plain easy
rewrite paraphrase rephrase reword
expand elaborate lengthen
title headline heading
date day deadline due
encrypt cipher encode
compress zip pack
recommend suggest advise propose
score grade mark rating
paper study research publication
product goods merchandise article
review testimonial rating
similar alike comparable related
cluster group segment
restaurant food meal dining
recipe dish cook
health medical symptom disease
music song tune melody
password credential secret
account profile user
deploy release rollout ship
build compile
database sql store
document file pdf
"""


def _read(groups: str) -> Mapping[str, tuple[str, ...]]:
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for line in groups.split("\n"):
        group = line.split()
        for word in group:
            found[stem(word)].update(dict.fromkeys(group))
    return {one: tuple(group) for one, group in found.items()}


_WORDS: Final = _read(_GROUPS)


@lru_cache(maxsize=4_096)
def related(stemmed: str) -> frozenset[str]:
    """Return the stems that are related to a stem, without the stem itself."""
    return frozenset(map(stem, _WORDS.get(stemmed, ()))) - {stemmed}


def widened(text: str) -> str:
    """Return a text followed by words that are related to its words.

    At most `ADDED_CHARS_MAX` characters are added.
    """
    own = dict.fromkeys(map(stem, words(text)))
    added = dict.fromkeys(word for one in own for word in _WORDS.get(one, ()))
    more = " ".join(word for word in added if stem(word) not in own)
    # A word that would be cut at the limit is left out.
    kept = more[: ADDED_CHARS_MAX + 1].rpartition(" ")[0] if len(more) > ADDED_CHARS_MAX else more
    return f"{text} {kept}".rstrip()
