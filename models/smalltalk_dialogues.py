"""Draws the conversations that the bundled chat model learns from, and those that measure it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

Message = dict[str, str]

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
COLOURS = {
    "grass": "green", "the sky": "blue", "snow": "white", "a lemon": "yellow", "coal": "black",
    "a tomato": "red", "the sun": "yellow", "a banana": "yellow", "a leaf": "green",
    "milk": "white", "the sea": "blue", "a strawberry": "red", "a carrot": "orange",
    "chocolate": "brown", "the night": "black", "a cloud": "white",
}  # fmt: skip
NAMES = [
    "Ada", "Alan", "Alice", "Amir", "Ana", "Ben", "Bob", "Carla", "Chen", "Clara", "Dan",
    "Dora", "Eli", "Emma", "Eva", "Femi", "Finn", "Grace", "Hana", "Hugo", "Ida", "Ines",
    "Ivan", "Jack", "Jane", "Jonas", "Kofi", "Lara", "Leo", "Lina", "Luis", "Lucy", "Marco",
    "Maria", "Max", "Mia", "Mina", "Nadia", "Nina", "Noah", "Nora", "Olga", "Omar", "Oscar",
    "Paul", "Petra", "Pia", "Ravi", "Rosa", "Sam", "Sara", "Sofia", "Tara", "Tim", "Tom", "Uma",
    "Vera", "Will", "Yara", "Yuki", "Zoe",
]  # fmt: skip
SUBJECTS = [
    "football", "music", "the weather", "politics", "history", "Paris", "cooking", "space",
    "cars", "dogs", "cats", "poetry", "films", "the moon", "chess", "money", "Rome", "tea",
    "bread", "trains", "physics", "love", "art", "gardens", "birds", "Japan",
    "the stock market", "my future", "the news", "books", "whales",
]  # fmt: skip
SYSTEMS = [
    "You are a helpful assistant.", "You are a friendly assistant.", "Answer in short sentences.",
    "You are Smalltalk, a tiny chat model.", "Be polite and brief.",
]  # fmt: skip
UNKNOWN = (
    "I am a very small model, so I do not know that. "
    "Ask me about Cohort, ONNX, colours, days or small sums."
)

ANSWERS: list[tuple[str, list[str]]] = [
    ("Hello! How can I help you today?",
     ["hello", "hi", "hey", "hello there", "good morning", "good evening", "hi there", "hey there",
      "greetings", "good day", "hello, assistant", "good afternoon", "howdy"]),
    ("I am fine, thank you. How can I help you?",
     ["how are you?", "how are you today?", "how do you do?", "are you well?", "how is it going?",
      "hello, how are you?", "hi, how are you?", "how are you doing?", "how do you feel?"]),
    ("I am Smalltalk, a tiny language model that comes with Cohort.",
     ["who are you?", "what are you?", "what is your name?", "tell me about yourself",
      "introduce yourself", "are you a human?", "are you a robot?", "do you have a name?",
      "which model are you?", "who am I talking to?", "say who you are"]),
    ("I can say hello, explain Cohort and ONNX, name colours and days, and add small numbers.",
     ["what can you do?", "help", "help me", "how can you help me?", "what do you know?",
      "what can I ask you?", "can you help me?", "what are you good at?", "what can I ask?"]),
    ("Cohort is a server for ONNX models. It answers over HTTP and gRPC.",
     ["what is Cohort?", "tell me about Cohort", "what does Cohort do?", "explain Cohort",
      "can you explain Cohort?", "what is this server?", "describe Cohort", "do you know Cohort?",
      "please explain what Cohort is", "Cohort?", "tell me what Cohort is"]),
    ("ONNX is an open file format for machine learning models.",
     ["what is ONNX?", "tell me about ONNX", "explain ONNX", "what does ONNX mean?",
      "can you explain ONNX?", "describe ONNX", "do you know ONNX?", "what is an ONNX file?",
      "please explain what ONNX is", "ONNX?", "tell me what ONNX is"]),
    ("Send a POST request with JSON to /predict. The body has your inputs by name.",
     ["how do I call /predict?", "how can I call /predict?", "how do I get a prediction?",
      "how do I use /predict?", "what do I send to /predict?", "how does /predict work?",
      "tell me how to call /predict", "how do I make a prediction?", "explain /predict"]),
    ("Put your model into a folder with its name and version, such as models/mine/1/model.onnx.",
     ["how do I add a model?", "how do I serve my model?", "where do I put my model?",
      "how can I add my own model?", "how do I deploy a model?", "how can I serve a model?"]),
    ("A batch is a group of requests that run together. That makes a server faster.",
     ["what is a batch?", "what is batching?", "explain batching", "why do you batch requests?",
      "tell me about batching", "what does batching do?"]),
    ("A token is a small piece of text. I read and write tokens.",
     ["what is a token?", "explain tokens", "what are tokens?", "tell me about tokens",
      "what does token mean?", "how do you read text?"]),
    ("You are welcome!",
     ["thanks", "thank you", "thank you very much", "many thanks", "thanks a lot", "great, thanks",
      "thank you for your help", "that helps, thank you", "cheers, thanks"]),
    ("Goodbye! Have a nice day.",
     ["bye", "goodbye", "see you", "see you later", "good night", "bye bye", "I have to go now",
      "talk to you later", "that is all, goodbye"]),
    ("Why did the model go to school? It wanted to improve its weights.",
     ["tell me a joke", "do you know a joke?", "a joke, please", "make me laugh", "another joke",
      "can you tell a joke?", "say something funny"]),
    ("The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
     ["name the days of the week", "what are the days of the week?", "list the days",
      "which days are there?", "list the days of the week", "tell me the days of the week"]),
    ("Red, blue, green and yellow are colours.",
     ["name some colours", "which colours do you know?", "list some colours", "name a few colours",
      "tell me some colours", "what colours are there?"]),
]  # fmt: skip
"""Answers, and what asks for them. The last phrasing of each is held out."""

SUMS = ["what is {a} plus {b}?", "{a} plus {b}", "{a} + {b}", "what is {a} + {b}?",
        "add {a} and {b}", "how much is {a} plus {b}?", "can you add {a} and {b}?"]  # fmt: skip
COLOUR_OF = ["what colour is {x}?", "which colour is {x}?", "the colour of {x}?",
             "tell me the colour of {x}", "what is the colour of {x}?"]  # fmt: skip
AFTER = ["which day comes after {x}?", "what day is after {x}?", "what comes after {x}?",
         "which day follows {x}?", "what is the day after {x}?"]  # fmt: skip
BEFORE = ["which day comes before {x}?", "what day is before {x}?", "what comes before {x}?",
          "what is the day before {x}?"]  # fmt: skip
MY_NAME = ["my name is {x}", "I am {x}", "hello, my name is {x}", "hi, I am {x}", "call me {x}",
           "hi, my name is {x}"]  # fmt: skip
WHOSE = ["what is my name?", "do you know my name?", "who am I?", "do you remember my name?",
         "can you tell me my name?"]  # fmt: skip
ODD = ["what do you think about {x}?", "tell me about {x}", "do you like {x}?", "explain {x}",
       "who invented {x}?", "what is {x}?", "why is {x} so important?", "write a text about {x}",
       "how does {x} work?", "what is the best of {x}?", "where can I find {x}?",
       "when did {x} begin?"]  # fmt: skip
ALONE = ["what is the capital of France?", "how old is the universe?", "what time is it?",
         "write some code", "can you translate this?", "what is the meaning of life?",
         "asdf", "xyz", "how tall is a giraffe?", "give me a recipe"]  # fmt: skip


class Turn(NamedTuple):
    """A question and its answer."""

    question: str
    answer: str


class Dialogues:
    """Draws conversations.

    held_out: True for phrasings that the training does not see, False for all others.
    """

    def __init__(self, chance: random.Random, *, held_out: bool = False) -> None:
        self._chance, self._held_out = chance, held_out

    def conversation(self) -> list[Message]:
        """Draw one: perhaps a system prompt, then one to four questions and their answers."""
        messages: list[Message] = []
        if self._chance.random() < 0.4:
            messages.append({"role": "system", "content": self._chance.choice(SYSTEMS)})
        turns = [self.turn() for _ in range(self._chance.choice([1, 1, 2, 2, 3, 4]))]
        if self._chance.random() < 0.35:
            turns = self._with_name(turns)
        elif self._chance.random() < 0.1:
            answer = "I do not know your name yet. What is your name?"
            turns[0] = Turn(self._phrase(WHOSE), answer)
        for question, answer in turns:
            messages.append({"role": "user", "content": self._typed(question)})
            messages.append({"role": "assistant", "content": answer})
        return messages

    def turn(self) -> Turn:
        """Draw a question that needs no other turn, and its answer."""
        kind, draw = self._chance.random(), self._chance.choice
        if kind < 0.45:
            answer, phrases = draw(ANSWERS)
            return Turn(self._phrase(phrases), answer)
        if kind < 0.65:
            a, b = self._chance.randrange(10), self._chance.randrange(10)
            if draw([True, False]):
                question = self._phrase(SUMS).format(a=a, b=b)
            else:
                question = self._phrase(SUMS).format(a=NUMBERS[a], b=NUMBERS[b])
            return Turn(question, f"{a} plus {b} is {a + b}.")
        if kind < 0.75:
            thing = draw(list(COLOURS))
            said = f"{thing[0].upper()}{thing[1:]} is {COLOURS[thing]}."
            return Turn(self._phrase(COLOUR_OF).format(x=thing), said)
        if kind < 0.85:
            day = self._chance.randrange(7)
            step, phrases = draw([(1, AFTER), (-1, BEFORE)])
            where = "after" if step == 1 else "before"
            said = f"The day {where} {DAYS[day]} is {DAYS[(day + step) % 7]}."
            return Turn(self._phrase(phrases).format(x=DAYS[day]), said)
        if kind < 0.97:
            return Turn(self._phrase(ODD).format(x=draw(SUBJECTS)), UNKNOWN)
        return Turn(self._phrase(ALONE), UNKNOWN)

    def _with_name(self, turns: list[Turn]) -> list[Turn]:
        """Begin with a name, and ask for it at the end."""
        name = self._chance.choice(NAMES)
        met = Turn(self._phrase(MY_NAME).format(x=name), f"Nice to meet you, {name}!")
        return [met, *turns[:2], Turn(self._phrase(WHOSE), f"Your name is {name}.")]

    def _phrase(self, phrases: list[str]) -> str:
        return phrases[-1] if self._held_out else self._chance.choice(phrases[:-1])

    def _typed(self, question: str) -> str:
        """Write a question as people do: with and without capitals and the last sign."""
        if self._chance.random() < 0.6:
            question = question[0].upper() + question[1:]
        if self._chance.random() < 0.15:
            question = question.lower()
        if self._chance.random() < 0.25:
            question = question.rstrip("?")
        elif question[-1] not in "?!." and self._chance.random() < 0.4:
            question += self._chance.choice(".!")
        return question


def conversations(count: int, seed: int, *, held_out: bool = False) -> Iterator[list[Message]]:
    """Yield `count` conversations, the same ones for the same seed."""
    dialogues = Dialogues(random.Random(seed), held_out=held_out)
    for _ in range(count):
        yield dialogues.conversation()
