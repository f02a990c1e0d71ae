"""Everyday prompts and a fixed piece of prose, written for this repository: does a target still know its language?"""

from __future__ import annotations

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "What is the difference between weather and climate?",
    "Write a short poem about a river in winter.",
    "Give me three tips for sleeping better.",
    "How does a bicycle stay upright?",
    "Summarise the story of Cinderella in two sentences.",
    "What are the ingredients of a simple tomato soup?",
    "Translate 'good morning, my friend' into French and Spanish.",
    "Write a polite e-mail asking a colleague to move a meeting to Thursday.",
    "What is photosynthesis?",
    "List five animals that live in the ocean.",
    "Explain what a prime number is and give some examples.",
    "Who wrote Romeo and Juliet, and what is it about?",
    "How do I calculate the area of a circle?",
    "Describe a busy market in the morning.",
    "What should I think of before adopting a dog?",
    "Write a Python function that returns the largest of three numbers.",
    "Why do leaves change colour in autumn?",
    "Tell me a joke about computers.",
    "What is the capital of Australia, and what is it known for?",
    "Explain how a bill becomes a law, briefly.",
    "How can I learn to play the guitar as an adult?",
    "What causes the tides?",
    "Describe your ideal day off.",
    "Write the first paragraph of a detective novel.",
    "What is inflation in economics?",
    "How many continents are there? Name them.",
    "Give me a recipe for pancakes.",
    "What is the meaning of the proverb 'many hands make light work'?",
    "Explain the water cycle to a child.",
    "Write a thank-you note to a teacher.",
    "What are the advantages and disadvantages of electric cars?",
    "Describe the taste of a lemon to someone who has never eaten one.",
    "How do vaccines work?",
    "Suggest a title for a film about a lighthouse keeper.",
    "What is the difference between a virus and a bacterium?",
    "Write a haiku about rain.",
    "How does a refrigerator keep food cold?",
    "What are good questions to ask in a job interview?",
    "Explain the rules of chess in a short paragraph.",
    "If a train travels 60 miles in 1.5 hours, what is its average speed?",
    "Name three famous painters and one work of each.",
    "Why is exercise good for the heart?",
    "Write a short dialogue between a baker and a customer.",
    "What is a black hole?",
    "How should I store fresh herbs?",
    "Describe the history of the printing press in a few sentences.",
    "What does a translator do?",
)

PROSE = """\
The village lay at the end of a road that nobody had bothered to pave. In summer the dust hung over it for an hour
after a cart had passed, and in autumn the ruts filled with water in which the children sailed boats of bark. There
were some forty houses, a church with a crooked weathercock, a mill that no longer ground anything, and an inn whose
landlord, a thin and melancholy man called Harrow, was said to have once been a sailor. He never spoke of it. But
above the door of his kitchen hung a brass compass, and on stormy evenings he could be seen standing before it with
his hands behind his back, as though he expected the needle to tell him something that he had waited a long time to
hear.

It was to this inn that a stranger came one evening in October. She was perhaps sixty years old, dressed plainly, and
carried a leather case that she would not let the boy take from her. She asked for a room that looked to the east.
When she was told that there was only one, and that it was small and had a draught, she said that she had slept in
worse, and that it was only for a week. Then she sat down by the fire, opened the case, and took from it a set of
little glass bottles, each with a label in a neat, upright hand. The guests, who had been talking about the price of
barley, fell silent one after the other.

"Water," said the woman, who had noticed. "Nothing but water. From every spring between here and the coast. I write
down where each comes from, how cold it was, and what it tastes of. You would be surprised how different they are."

Harrow came closer. He asked what such a thing might be good for, and she laughed, not unkindly, and said that people
had asked her that for thirty years. A spring, she explained, is the end of a long journey. Rain falls on a hill,
sinks through the soil, and moves through the rock so slowly that it may be older than the oldest man in the village
when it sees the light again. On its way it takes up a little of everything it meets: lime, iron, salt. Whoever knows
how to read it can tell what the hill is made of without ever digging a hole. And whoever looks every year can tell
whether something has changed, long before a well runs dry.

How does water find its way through solid rock? The answer is that few rocks are as solid as they look. Sandstone is a
heap of grains pressed together, and between the grains there is room, often a fifth of the whole volume. Limestone is
denser, but it cracks, and because rain is slightly sour the cracks grow wider with the centuries until some of them
are caves. Granite lets almost nothing through. Where a layer that holds water meets one that does not, on the side of
a valley for instance, the water has no choice but to come out, and we call that a spring. Its temperature hardly
changes over the year, which is why it feels cold in July and steams in January. This constancy is one of the reasons
why people settled near springs long before they learned to dig wells, and why so many old stories place something
holy beside them.

Measuring a spring is not difficult, though it takes patience. One needs a thermometer, a bucket, and a watch. The
bucket is held beneath the outlet, and the time it takes to fill is noted; ten litres in twenty seconds makes half a
litre per second, enough for the daily needs of three hundred people. If the measurement is repeated on the first day
of each month, a curve appears after a year or two. Most curves rise in spring, when the snow melts, and fall until
the autumn rains. A spring whose curve is almost flat has a large reservoir behind it. A spring that answers every
thunderstorm within hours has hardly any, and its water should be boiled before drinking, because nothing has filtered
it.

None of this would have mattered much to the village had it not been for the new quarry. A company from the city had
bought the northern slope of the hill two years earlier, and every weekday at noon there was a dull thud that made the
windows tremble. The company had promised work, and it had kept its word; eleven men walked up the road each morning.
It had also promised that the wells would not suffer. About that, opinions were divided. The widow Marsh said that her
well had dropped by an arm's length since Easter. Her neighbour said that hers had always been a poor well. The mayor,
who did not want to quarrel with anybody, said that the summer had been dry, which was true, and that one would have
to wait and see, which was also true but helped no one.

The woman with the bottles listened to all of it. In the following days she was seen at every well and at each of the
three springs, kneeling in the wet grass with her thermometer, writing in a notebook with a pencil tied to a string.
She asked everyone the same questions and never said what she thought of the answers. On the fifth day she climbed to
the quarry and spoke for an hour with the foreman, a young man who had studied engineering for two years before the
money ran out. He showed her the drill cores that the company had taken before the first blast, long grey cylinders
laid out in wooden boxes, each marked with its depth. She went along the boxes slowly. Near the end of the last row
she stopped, put on her glasses, and bent down. Between eighteen and nineteen metres the grey turned into a pale
yellow, and the stone, when she rubbed it, came off on her finger like chalk.

That evening she asked Harrow for a large sheet of paper, and since he had none he gave her the back of an old sea
chart. She drew the hill as if it had been cut with a knife: the church on the left, the quarry on the right, and
between them a thin yellow line that sloped gently towards the village. "This is where your water comes from," she
said to those who had gathered around the table. "All of it. The wells, the springs, even the pond behind the mill. As
long as they dig above this line, nothing will happen to you, whatever the noise. If they dig through it, the water
will take the shorter way and flow out into the quarry, and you will have to carry it home in buckets. At present
there are four metres left."

There was a long silence. Then everybody spoke at once, and it was some time before anyone noticed that Harrow had
taken the compass down from its nail and laid it on the chart, beside the drawing, so that north was where it ought to
be.
"""
