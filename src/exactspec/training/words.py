"""Words that prompt recipes are filled with. Plain lists, so that prompts are many and no two machines differ."""

from __future__ import annotations

from typing import Final


def _listed(text: str) -> tuple[str, ...]:
    """Entries of a text, separated by bars; line breaks are spaces."""
    return tuple(" ".join(entry.split()) for entry in text.split("|"))


PEOPLE: Final = _listed("""
baker| lighthouse keeper| retired pilot| young violinist| beekeeper| night watchman| shy librarian| carpenter|
mountain guide| nurse| clockmaker| taxi driver| archaeologist| fisherman| gardener| astronomer| chess teacher|
postman| shoemaker| painter| sailor| inventor| botanist| train conductor| glassblower| tailor| school cook|
stonemason| translator| weather forecaster| piano tuner| ferry captain| puppet maker| geologist| firefighter|
cartographer| swimming coach| bookbinder| veterinarian| electrician| poet| shepherd| marine biologist| cheese
maker| museum guard| plumber| detective| falconer| bell ringer| soap maker| street musician| miller| locksmith|
grandmother| apprentice| blacksmith| twin brothers| farmer| exchange student| mayor| wandering merchant
""")
PLACES: Final = _listed("""
a small island| an abandoned railway station| a village under a glacier| a floating market| a desert town| an
old mill| a harbour in winter| a valley of orchards| a mountain monastery| a crowded bazaar| a lighthouse| a
forgotten library| a space station| an underground city| a rainforest camp| a quiet suburb| a hospital at night|
a circus on the road| a river delta| a university laboratory| a salt mine| a high school| a snowed-in hotel| a
fishing boat| a vineyard| a city of canals| an observatory| a bakery at dawn| a museum after closing| a lonely
farmhouse| a night train| a tea plantation| a coral reef| a northern forest| a clock tower| an airport| a
botanical garden| a theatre| a castle| a housing block| a beach in autumn| a caravan| a workshop| a bridge
between two towns| a cave behind a waterfall
""")
THINGS: Final = _listed("""
a lost letter| a broken compass| a key without a lock| a singing stone| an old photograph| a map with a missing
corner| a silver whistle| a stray dog| a sealed box| a diary| a blue lantern| a stolen recipe| a robot that
forgets| a clock that runs backwards| a seed that never sprouted| a borrowed coat| a message in a bottle| a
cracked mirror| a talking crow| an unfinished song| a wooden ship| a promise| a debt| a wrong telephone number|
a hidden door| a pair of red boots| a forgotten birthday| a snow globe| a painted fan| an empty chair| a storm|
a rumour| a secret garden| a lottery ticket| a rusty bicycle| a jar of honey| a wedding ring| a telescope| an
unexpected visitor| a bag of coins
""")
MOODS: Final = _listed("""
funny| sad| hopeful| mysterious| quiet| exciting| strange| warm| dark| playful| dreamy| bitter| tender|
suspenseful
""")
TOPICS: Final = _listed("""
photosynthesis| gravity| inflation| the water cycle| black holes| vaccines| plate tectonics| supply and demand|
compound interest| the immune system| electric current| magnetism| the French Revolution| the printing press|
the Roman aqueducts| natural selection| antibiotics| nuclear fusion| solar panels| batteries| the greenhouse
effect| tides| eclipses| earthquakes| volcanoes| the nitrogen cycle| fermentation| DNA| stem cells| the human
heart| digestion| sleep| memory| hearing| colour vision| the nervous system| bees and pollination| coral
bleaching| bird migration| photographic exposure| sound waves| radio| the telephone| the steam engine| how
aeroplanes fly| refrigerators| microwave ovens| how search engines work| encryption| computer viruses| operating
systems| databases| machine learning| neural networks| recursion| binary numbers| sorting algorithms| hash
tables| version control| the internet| cloud computing| the stock market| taxes| insurance| budgeting|
mortgages| democracy| the separation of powers| human rights| the Silk Road| the Renaissance| the Industrial
Revolution| the Cold War| ancient Egypt| the Vikings| the Aztecs| the moon landing| probability| prime numbers|
the Pythagorean theorem| derivatives| fractions| negative numbers| statistics| averages| logical fallacies|
metaphors| irony| haiku| sonnets| the subjunctive| jazz| counterpoint| impressionism| perspective| bread baking|
composting| chess openings| first aid for burns| stretching| marathon training| meditation| public speaking| job
interviews| learning a language| time zones| leap years| calendars| recycling| water purification| wind energy|
glaciers| deserts| rainforests| rivers| soil| clouds| lightning| snowflakes| rainbows| comets| Mars| Saturn's
rings
""")
AUDIENCES: Final = _listed("""
a ten-year-old| a beginner| a curious adult| a high school student| my grandmother| an engineer| a new
colleague| someone in a hurry| a class of teenagers| a journalist
""")
GOALS: Final = _listed("""
sleep better| save money| learn to cook| start running| read more books| stop procrastinating| prepare for an
exam| make friends in a new city| write a novel| grow tomatoes| learn to swim| paint a room| train a puppy| fix
a flat tyre| plan a birthday party| clean an oven| pack for a week by the sea| move to another country| learn
the guitar| keep houseplants alive| reduce food waste| organise a bookshelf| speak in front of people| learn to
type fast| prepare a garden for winter| choose a laptop| start a small business| write a speech| build a
birdhouse| get better at chess| drink less coffee| walk more every day| keep a diary| learn a poem by heart|
host a dinner| negotiate a salary| find a flat| repair a bicycle| bake sourdough bread| study with less stress|
plan a hike
""")
FOODS: Final = _listed("""
lentil soup| apple pie| vegetable curry| pancakes| mushroom risotto| tomato salad| banana bread| fish tacos|
bean chili| potato gratin| fried rice| pumpkin soup| omelettes| oat biscuits| roast chicken| spinach lasagne|
dumplings| flatbread| rice pudding| onion tart| chickpea stew| noodle soup| lemon cake| stuffed peppers| granola
""")
TASKS: Final = _listed("""
counts how often each word occurs in a text| checks whether a string is a palindrome| merges two sorted lists|
reads a CSV file and sums one column| finds the longest word in a sentence| removes duplicates but keeps the
order| converts temperatures between Celsius and Fahrenheit| computes the greatest common divisor| prints a
calendar of one month| rolls dice and counts the results| finds all files larger than a size| flattens a nested
list| rotates a matrix by 90 degrees| validates an email address| parses a date| computes the median of a list|
groups words by their first letter| implements a stack| implements a queue with two stacks| searches a sorted
list by bisection| sorts a list with quicksort| finds prime numbers up to n| computes Fibonacci numbers with
memoisation| compresses a string by run lengths| formats bytes as kB, MB and GB| splits a list into chunks|
transposes a table| finds the intersection of two lists| downloads a page and prints its title| renames all
files in a folder| times how long a function takes| retries a function that fails| caches results on disk| reads
a configuration file| writes a log with time stamps| counts lines of code in a folder| generates a random
password| encrypts a text with a Caesar cipher| checks balanced brackets| evaluates a simple arithmetic
expression| walks a tree depth first| finds the shortest path in a grid| implements a linked list| converts
Roman numerals| draws a triangle of stars| computes a moving average| interleaves two lists| keeps the n largest
numbers of a stream| turns a dictionary inside out| parses command line options
""")
LANGUAGES: Final = _listed("""
Python| Python| Python| Python| JavaScript| C| Java| Bash| SQL| Go| Rust| TypeScript
""")
ITEMS: Final = _listed("""
books in a library| employees of a company| products in a shop| students in a class| flights of an airline|
songs in a playlist| plants in a garden| cities of a country| orders of customers| planets| recipes| football
matches| rooms of a hotel| films| bus stops| patients of a clinic| tools in a workshop| courses of a university
""")
FIELDS: Final = _listed("""
name| year| price| colour| weight| city| author| rating| date| status| count| owner| size| category| email|
score| country
""")
SENTENCES: Final = _listed("""
The meeting was moved to Thursday because the room was taken.| We was not knowing about the delay of the train.|
Despite the rain, the children played outside until it was dark.| The results, although promising, are not
final.| He don't like neither coffee nor tea.| Please find attached the report which you have asked me for it.|
The old bridge, built by hand a century ago, still carries lorries every day.| I am writing to complain about
the washing machine I bought from you last month.| Our team finished the project two weeks early and under
budget.| Their going to the market if it dont rain.| The museum opens at nine, but the new exhibition only from
noon.| Sales fell in spring and rose again in autumn.| She said she would call, yet the telephone stayed silent
all evening.| The software saves your work every minute, so nothing is lost when the power fails.| Most visitors
come by train, some by bicycle, and a few on foot.| It is important to note that the data was collected over a
period of ten years.| The cat slept on the warm roof while the neighbours argued about the fence.| Due to the
fact that it was late, we made the decision to leave.
""")
OPINIONS: Final = _listed("""
living in a city| working from home| school uniforms| electric cars| learning two languages as a child| four-day
weeks| reading on paper| keeping pets in flats| travelling alone| social media| public transport| video games|
cooking at home| early mornings| zoos| online courses| team sports| nuclear power| tipping| space travel| robots
at work| homework| buying second-hand clothes| self-driving cars| daylight saving time| fast food| large
families
""")
FOLLOW_UPS: Final = _listed("""
Can you make it shorter?| Give me an example.| Explain the second point in more detail.| Why is that?| Now say
the same in simpler words.| What are the drawbacks?| Continue.| Can you write that as a list?| What would an
expert add?| Thanks! One more question: how do I start?| Rewrite it as a letter to a friend.| Give it a
different ending.| What is the most common mistake?| Sum it up in one sentence.| Are you sure?| Add a title.|
How long does it take?| Is there another way to do it?| Translate the first sentence into French.| Turn it into
a dialogue.| What should I read next?| Compare it with the opposite view.
""")
QUESTIONS: Final = _listed("""
What is the capital of {city}'s country, and what is it known for?| I have {n} hours in {city}. What should I
see?| Describe the weather in {city} in March.| Write a short poem about {city}.| What languages are spoken in
{city}?| How do I get from {city} to {other}?| Compare {city} and {other}.| Plan {n} days in {city} for a
family.| Write a postcard from {city}.| What food is typical of {city}?| Tell me about the history of {city}.|
What time is it in {city} when it is noon in {other}?| Write an advertisement for a hotel in {city}.
""")
