"""The answer in a response, and whether two answers in LaTeX mean the same.

Both answers are read to their last character into a tree: numbers, letters, units, words, operators, lists, brackets.
Trees are compared part by part, expressions by their values: exactly, or to more digits than anything in them could
hide. What cannot be read is equal only to itself, but for spaces and fonts: a verdict of right never rests on
characters that were thrown away.
"""
import math
import re
import unicodedata
from collections import namedtuple
from fractions import Fraction
from functools import lru_cache
from itertools import product
from random import Random

from mpmath import MPContext

# --- extraction ---------------------------------------------------------------------------------------------

def final_text(response):
    """What follows the thinking; nothing if the thinking did not end."""
    text = response.rpartition("</think>")[2]
    return "" if "<think>" in text else text

def extract_boxed(response):
    """Content of the last complete \\boxed{...} (braces may nest) after </think>; None if there is none."""
    text = final_text(response)
    boxes = list(re.finditer(r"\\(?:boxed|fbox)\s*(?:\{|(-?\d[\d./]*))", text))
    for box in boxes[:-6:-1]:                              # few of them, so that the time is linear
        if box[1]:
            return box[1].rstrip(".")                                      # \boxed 2
        depth = 1
        for brace in re.compile(r"\\.|[{}]").finditer(text, box.end()):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                return text[box.end():brace.start()]
    return None

# --- plain numbers ------------------------------------------------------------------------------------------

Number = namedtuple("Number", "value digits ulp")     # Fraction; significant digits of a decimal, else 0; last place
_NUMBER = re.compile(r"\s*(-?)(?:(?=\.?\d)(\d*)(?:\.(\d+))?(?:[eE](\d{1,3}|-\d\d\d?))?"
                     r"|\\[dt]?frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+))\s*", re.ASCII)

@lru_cache(100_000)
def number(text):
    """-3, .25, 7/4, \\frac{7}{4}, 1.5e10 as a Number, or None; 2e-7 may be Euler's e."""
    m = _NUMBER.fullmatch(text) if len(text) < 4000 else None              # int() reads 4,300 digits
    if not m:
        return None
    sign, integer, decimals, exponent, *fraction = m.groups()
    sign = -1 if sign else 1
    if integer is None:
        top, bottom = (int(n) for n in fraction if n)
        return Number(sign * Fraction(top, bottom), 0, Fraction(1)) if bottom else None
    ulp = Fraction(10) ** (int(exponent or 0) - len(decimals or ""))
    digits = len((integer + decimals).lstrip("0")) if decimals else 0
    return Number(sign * int(integer + (decimals or "")) * ulp, digits, ulp)

def same_number(a, b):
    """Equal; or one is a decimal with six digits or more that rounds, or cuts off, the other, which is exact
    and no integer. From 16 digits on a decimal is what a float prints."""
    if a.value == b.value or bool(a.digits) == bool(b.digits):
        return a.value == b.value
    decimal, exact = (a, b) if a.digits else (b, a)
    error = (exact.value - decimal.value) * (1 if decimal.value > 0 else -1)
    close = decimal.value.denominator > 1 and (2 * abs(error) <= decimal.ulp or 0 <= error < decimal.ulp)
    float_noise = decimal.digits >= 16 and abs(error) < abs(exact.value) / 2 ** 52
    return decimal.digits >= 6 and exact.value.denominator > 1 and (close or float_noise)

# --- tokens -------------------------------------------------------------------------------------------------

_SIGNS = r"""− - – - × \times · \cdot ⋅ \cdot ÷ / ∞ \infty ° \degree √ \sqrt ∪ \cup ∩ \cap ∖ \setminus ± \pm ≤ \le ≥ \ge
    ≠ \ne ≈ \approx ∈ \in ∅ \emptyset ½ \frac12 ¼ \frac14 ¾ \frac34 ⟨ ( ⟩ ) ⌊ \lfloor ⌋ \rfloor ⌈ \lceil ⌉ \rceil
    ℝ \mathbb{R} ℤ \mathbb{Z} ℕ \mathbb{N} ℚ \mathbb{Q} ′ ' ’ ' ∠ \angle ⁄ /""".split()
SIGNS = str.maketrans({**{sign: f"{tex} " for sign, tex in zip(_SIGNS[::2], _SIGNS[1::2])}, "$": "", "~": " ",
                       "\n": " ", ";": ",", **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")})
_SAME = dict(pair.split() for pair in r"""\dbinom \binom;\tbinom \binom;\leq \le;\leqslant \le;\geq \ge;\geqslant \ge;\lt <;\gt >
    ;\neq \ne;\varnothing \emptyset;\langle (;\rangle );\lbrace \{;\rbrace \};\lbrack [;\rbrack ];\vert |;\lvert |;\rvert |;\mid |
    ;\backslash \setminus;\cdot *;\times *;\ast *;\div /;\colon :;\simeq \approx;\lor "or;\land "and;\% %;"percent %;\prime '
    ;\varphi \phi;\varepsilon \epsilon;\pounds £;"degrees \degree;"degree \degree;"to :;"per /;\arcsin \asin;\arccos \acos
    ;\arctan \atan;\ln \log;"two 2""".split(";"))
# Symbols of units, each with its other words. A word that changes a number (hundredths, doubled) is none.
_UNITS = {word: row.split()[0] for row in r"""m meter meters metre metres;cm centimeter centimeters centimetres;km kilometer
    kilometers;mm millimeter millimeters;in inch inches;ft foot feet;yd yard yards;mi mile miles;kg kilogram kilograms;g gram
    grams;mg;lb lbs pound pounds;oz ounce ounces;L l liter liters litre litres;mL ml;gal gallon gallons;s sec secs second
    seconds;min mins minute minutes;h hr hrs hour hours;day days;week weeks;month months;year years;mph;rpm;N newtons;J joule
    joules;W watt watts;V volt volts;A amp amps;Hz hertz;Pa;K kelvin;mol moles;erg ergs;eV;rad radians;C;F;%;\degree;$ dollar
    dollars USD;cent cents;€ euro euros;£;元;个;am AM;pm PM;unit units th st nd rd;way ways;times;half-hours;people;men;women
    ;children;boys;girls;students;points;apples;marbles;books;balls;cards;coins;pages;tickets;games;teams;numbers;integers
    ;solutions;sides;triangles;steps;terms;digits;cars;cookies;eggs;acres;tons""".split(";") for word in row.split()}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10 ** 3, "million": 10 ** 6, "billion": 10 ** 9, "trillion": 10 ** 12}
_FUNCTIONS = ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "asin", "acos", "atan", "log", "exp")
_MACROS = (*_FUNCTIONS, "arcsin", "arccos", "arctan", "ln", "sqrt", "pi", "infty")
_WORDS = {*_SCALES, *"and or to per yes no on odd two square cubic sq percent degrees degree".split()}

def repeating(m):
    """0.1\\overline{6}, 0.\\dot{1}4\\dot{2} as a fraction."""
    integer, decimals, period = m[1], m[2], (m[3] or m[4]) + (m[5] or "") + (m[7] or "")
    whole = int(integer + decimals + period) - int("0" + integer + decimals)
    return "\\frac{%d}{%d}" % Fraction(whole, (10 ** len(period) - 1) * 10 ** len(decimals)).as_integer_ratio()

def plain_unit(m):
    """12 hours, 5cm: letters after a number become a word if they are a unit."""
    known = m[2] in _UNITS and (m[1] or m[2] in ("cm", "km", "kg", "mm", "ft")) and m[2] != "mg"
    return f'{m[1]}"{m[2]}' if known else m[0]

_CLEAN = [(re.compile(pattern), new) for pattern, new in [
    (r"^\s*\*\*(.*)\*\*\s*$", r"\1"), (r"\*\*", "^"), (r">=", r"\\ge "), (r"<=", r"\\le "), (r"\\text\{,\}", "{,}"),
    (r"\\\\\s*(?:\[[\w.]+\])?|\\cr(?![a-z])", r"\\row "), (r"\\(?:left|right)\s*\.", ""), (r"\\not\s*=", r"\\ne "),
    (r"\\\{\s*\\begin\s*\{(?:array|aligned)\}", r"\\begin{cases}"),
    (r"\\(begin|end)\s*\{(\w+)\*?\}", r"\\\1\2 "), (r"(\\begin(?:cases|array))\s*\{[clr|]+\}", r"\1 "),
    (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|bf|it|rm|boldsymbol|math(?:bf|it|sf|tt|cal)|bm|underline"
     r"|ensuremath|boxed|[lL]arge|LARGE|[hH]uge|small)(?![a-zA-Z])|\\(?:textcolor|colorbox|color)\s*\{\w+\}|\\[hv]space\*?\s*\{[^{}]*\}", " "),
    (r"\\(?:[dtc]|nice|s)?frac(?![a-z])\s*", r"\\frac "), (r"\\frac (\d)", r"\\frac{\1}"), (r"(\\frac ?\{[^{}]*\})\s*(\d)", r"\1{\2}"),
    (r"\\mathbb\s*(\{)?\s*([A-Z])\s*(?(1)\})", r"\\\2\2 "), (r"\\RR\s*_\s*(\{)?\s*\\ge[a-z]*\s*0\s*(?(1)\})", r"[0,\\infty)"),
    (r"\^\s*(\{)?\s*\\(?:circ|degree)(?![a-z])\s*(?(1)\})", r"\\degree "), (r"\+/-|^\s*\+-", r"\\pm "), (r"\{:\}", ":"),
    (r"(?<![\d^_.])\d{1,3}(?:(?:\{,\}|\\!,\\!|,\\!|\\!,|\\[,;: ]| |')\d{3})+(?!\d|\s*/|\s*\\frac)",
     lambda m: re.sub(r"\D+", "", m[0])),                                                          # 10{,}000
    (r"\\(?:q?quad(?![a-zA-Z])|[,;:!> ()]|\[|\](?!\d))", " "), (r"(?<=\d) +x +(?=10\s*\^)", r"\\times "),
    (r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))(?:(\d*)\\dot\s*(\{)?(\d)(?(6)\}))?", repeating),
    (r"\b([aApP])\. ?[mM]\.?", r"\1m"), (r"\b(sq|in|ft|cm)\.", r"\1 "), (r"(?<=[\d)}])( *)([a-zA-Z]{2,})(?![a-zA-Z])", plain_unit)]]
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|[mh]box|emph|mathrm|operatorname)(?![a-z])\s*\{((?:[^{}]|\{[^{}]*\})*)\}")

class Unreadable(ValueError):
    """An answer, or a comparison, that the grammar has no meaning for."""

@lru_cache(50_000)
def tokenize(text):
    """The tokens without fonts, colours and spaces. Words, and letters in \\text{...}, begin with a quotation mark."""
    text = text.replace("\\$", '"dollar ')
    for scripts, sign in ("⁰¹²³⁴-⁹⁻", "^"), ("₀-₉", "_"):
        text = re.sub(f"[{scripts}]+", lambda m: f"{sign}{{{unicodedata.normalize('NFKC', m[0])}}}", text)
    text = unicodedata.normalize("NFKC", text.translate(SIGNS)).translate(SIGNS)
    text = re.sub("[α-ω]", lambda m: "\\%s " % unicodedata.name(m[0]).split()[-1].lower().replace("mda", "mbda"), text)
    text = "".join(str(unicodedata.decimal(c, c)) for c in text)
    text = text if "\\begin" in text else text.replace("\\\\", "\\")
    for pattern, new in _CLEAN:
        text = pattern.sub(new, text)
    for _ in range(4):
        text = _TEXT.sub(lambda m: re.sub(r'(?<![\\"a-zA-Z-])[^\W\d_]+(?:-[^\W\d_]+)*', r'"\g<0>', m[1]) + " ", text)
    text = re.sub(r'(?<=\d)\s*\^\s*(\{)?\s*"(st|nd|rd|th)\s*(?(1)\})', r'"\2', text)
    found = re.findall(r'\d+(?:\.\d+)?|\.\d+|\\[a-zA-Z]+|\\.|"[^\W\d_]+(?:-[^\W\d_]+)*|[^\W\d_]+|\S', text)
    prose = all(re.fullmatch(r"""["]?[^\W\d_][\w-]*|[-,.'()]""", token) for token in found)
    tokens = []
    for token in found:
        if token.strip('\\"') in _MACROS and token != '"sec':
            token = "\\" + token.strip('\\"')
        elif token.isalpha() and (not token.isascii() or token.lower() in _WORDS or len(token) > 3 and (prose or token in _UNITS)
                                  or prose and len(token) > 1 and token.isupper() or re.match("[A-Z][a-z]{2}", token)):
            token = '"' + token
        token = _SAME.get(token, token)
        tokens += token if token.isalpha() else [token]
    return tuple(tokens[:-1] if tokens[-1:] == ["."] else tokens)

def spelled(tokens):
    """The tokens in one spelling: what is not read is equal only to itself."""
    exact = (t[0] == "\\" or len(t) < 4 and t.isupper() or t.lstrip('"') in _UNITS or len(t) == 1 for t in tokens)
    text = " ".join(t if keep else t.casefold() for t, keep in zip(tokens, exact))
    text = re.sub(r'(?<=\d) "(?:st|nd|rd|th)\b', "", re.sub(r"\{ (\S+) \}", r"\1", text))
    text = re.sub(r'(?<=\w\w) "(?=\w\w)', "~", text).replace('"', "")
    return re.sub(r"(?<!\d) | (?!\d)", "", text)

# --- grammar: a tree is a string (a number, a letter, '"cm') or a tuple (operator, *trees) -------------------

Chain = namedtuple("Chain", "name ops")               # the operator of a = b < c; name: its first side as it is written
_JOINTS = (",", '"and', '"or', "\\row")
_BINDS = {**dict.fromkeys((*_JOINTS, "|"), 1), **dict.fromkeys(("=", "\\approx", "\\in", "\\ne", "<", "\\le", ">", "\\ge", "\\equiv"), 2),
          "\\cup": 3, "\\cap": 3, "\\setminus": 3, ":": 4, "+": 5, "-": 5, "\\pm": 5, "\\bmod": 5, "*": 6, "/": 6, " ": 6,
          "^": 8, "_": 8, "!": 8, "'": 8}
_CLOSE = {"(": (")", "]"), "[": ("]", ")"), "\\{": ("\\}", "|", ":"), "|": "|", "\\lfloor": ("\\rfloor",), "\\lceil": ("\\rceil",)}
_GREEK = ("alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|phi|chi|psi|omega"
          "|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega|ell|pi")
_LETTER = re.compile(rf'"?[A-Za-z]|\\(?:{_GREEK})')
_ACCENTS = ("\\hat", "\\bar", "\\vec", "\\tilde", "\\overline", "\\angle", "\\triangle")
_QUESTION = ("\\gcd", "\\lcm", "\\max", "\\min", "\\det", "\\sum", "\\prod", "\\int", "\\lim")      # no value of its own
_CONSTANTS = ("\\pi", "\\infty", "\\emptyset", "\\RR", "\\ZZ", "\\NN", "\\QQ", "\\CC", "\\EE")
_PHRASES = {r"(there (is|are) )?no (real )?solutions?( exists?)?|(the )?empty set": "\\emptyset",
            "all reals|all real numbers": "\\RR", "dne|does not exist": ("words", "does not exist")}

class Reader:
    """Precedence climbing; every method consumes what it returns, or raises Unreadable."""

    def __init__(self, tokens):
        self.tokens, self.at, self.bars = tokens, 0, False

    def next(self, ahead=0):
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else "\0"

    def accept(self, *texts):
        found = self.next() in texts
        self.at += found
        return found and self.tokens[self.at - 1]

    def expect(self, *texts):
        if self.next() not in texts:
            raise Unreadable(self.next())
        return self.accept(*texts)

    def tree(self, floor=0):
        """The longest tree from here whose operators bind tighter than floor."""
        start, sign = self.at, self.accept("-", "+", "\\pm")
        left = self.tree(max(floor, 5)) if sign else self.primary()
        left = ("neg", left) if sign == "-" else ("*", "±", left) if sign == "\\pm" else left
        while True:
            op = self.next() if self.next() in _BINDS else " "
            if op == " " and not self.begins() or _BINDS[op] <= floor or self.bars and op in ("|", ":"):
                return left
            self.accept(op)
            if op == "\\row" and self.next()[:4] == "\\end":
                return left
            if op in ("!", "'"):
                left = (op, left)
            elif op in ("^", "_"):
                left = (op, left, self.script())
            elif op in _JOINTS:
                joints = {op, left[0], self.accept('"and', '"or')}
                joint = '"or' if '"or' in joints else '"and' if '"and' in joints else ","
                left = (joint, *(left[1:] if left[0] in _JOINTS else (left,)), self.tree(1))
            elif _BINDS[op] == 2:
                chain = left[0] if isinstance(left[0], Chain) else Chain(spelled(self.tokens[start:self.at - 1]), ())
                left = (Chain(chain.name, (*chain.ops, op)), *(left[1:] if chain.ops else (left,)), self.tree(2))
            elif op == "\\pm":
                left = ("+", left, ("*", "±", self.tree(5)))
            else:
                left = (op, left, self.tree(_BINDS[op]))
                if op == "/" and self.begins() and self.next().lstrip('"') not in _UNITS:
                    raise Unreadable("1/2x has two readings")

    def begins(self):
        """True if the next token begins a factor."""
        token, word = self.next(), self.next().lstrip('"')
        return (token in ("(", "[", "{", "\\frac", "\\sqrt", "\\binom") or token == "|" and not self.bars or word in _UNITS
                or word in _SCALES or word in ("square", "cubic", "sq") or token[1:] in _FUNCTIONS or token[:6] == "\\begin"
                or token[0].isdigit() and self.tokens[self.at - 1] == "!" or bool(_LETTER.fullmatch(token)))

    def script(self):
        """What ^, _ or \\frac applies to: {...}, or one token with its sign."""
        return ("neg", self.primary()) if self.accept("-") else self.primary()

    def primary(self):
        """A number, letter, unit, run of words, bracket, or command with its arguments."""
        before, token, word = self.tokens[self.at - 1] if self.at else "(", self.next(), self.next().lstrip('"')
        self.at += 1
        if re.match(r"\.?\d", token):
            return self.numeral(token)
        if word in _SCALES and before[0].isdigit():
            return str(_SCALES[word])
        if word in ("dollar", "€", "£") and self.next()[0].isdigit():
            return ("*", self.primary(), '"' + _UNITS[word])
        if word in ("square", "cubic", "sq") and self.next().lstrip('"') in _UNITS:
            return ("^", self.primary(), "3" if word == "cubic" else "2")
        if word in _UNITS and not token.isalpha() and re.search(r"[\w)}%/*|!]$", before) and before not in _BINDS.keys() - {"/", "*", "!"}:
            return ("/", '"mi', '"h') if word == "mph" else '"' + _UNITS[word]
        if _LETTER.fullmatch(token) and not (token[0] == '"' and re.fullmatch(r'"\w\w.*', self.next())
                                             and self.next() not in _JOINTS and self.next()[1:] not in _UNITS):
            return self.letter(word)
        if token[0] == '"':
            while self.next()[0] == '"' and self.next() not in _JOINTS or self.next().isalnum() or self.next() == "-":
                word += " " + self.accept(self.next()).lstrip('"')
            word = re.sub(r"(?<=\d) (?:st|nd|rd|th)$", "", word.casefold())
            return next((tree for phrase, tree in _PHRASES.items() if re.fullmatch(phrase, word)), ("words", word))
        if token in _CLOSE:
            return self.bracket(token)
        if token == "{":
            value, macro = self.tree(), self.expect("\\over", "\\choose", "}")
            if macro != "}":
                value = ("/" if macro == "\\over" else "\\binom", value, self.tree())
                self.expect("}")
            return value
        if token in ("\\frac", "\\binom"):
            return ("/" if token == "\\frac" else token, self.script(), self.script())
        if token == "\\sqrt":
            index = self.accept("[") and (self.tree(), self.expect("]"))[0]
            return ("root", self.script(), index or "2")
        if token[1:] in _FUNCTIONS:
            return self.function(token[1:])
        if token in _ACCENTS:
            return ("call", token, self.tree(6) if token in _ACCENTS[-2:] else self.script())
        if token in _QUESTION:
            scripts = []
            while script := self.accept("_", "^"):
                scripts += [script, self.script()]
            return ("question", token, *scripts, self.tree(5))
        if token[:6] == "\\begin":
            return self.environment(token[6:])
        if token not in _CONSTANTS:
            raise Unreadable(token)
        return token

    def numeral(self, token):
        """5, 0.5, 1 3/4, 2\\frac12."""
        if self.next().isdigit() and self.next(1) == "/":
            return ("+", token, ("/", self.primary(), self.expect("/") and self.primary()))
        if not token.isdigit() or self.next() != "\\frac":
            return token
        fraction = self.primary()
        mixed = all(isinstance(part, str) and part.isdigit() for part in fraction[1:]) and int(fraction[1]) < int(fraction[2])
        return ("+" if mixed else "*", token, fraction)

    def letter(self, word):
        """A letter; f(2) and P(X=2) are one too, x(x+1) is a product."""
        start = self.at
        if self.accept("("):
            inside, _ = self.tree(), self.expect(")", "]")
            if isinstance(inside, str) or inside[0] in _JOINTS or isinstance(inside[0], Chain) or inside[0] in ("\\cup", "\\cap"):
                return ("call", word, inside)
        self.at = start
        return word

    def function(self, name):
        """\\sin x, \\sin^2 x, \\tan^{-1} x, \\log_2 8; without brackets it takes the factors up to the next sign."""
        base, power = self.accept("_") and self.script(), self.accept("^") and self.script()
        bare = self.next() not in ("(", "{", "|")
        value = self.tree(6) if bare else self.primary()
        while bare and self.begins() and self.next() not in ("(", "{", "[") and self.next()[1:] not in _FUNCTIONS:
            value = (" ", value, self.tree(6))
        inverse = power == ("neg", "1")
        value = ("a" * inverse + name, value)
        value = ("/", value, ("log", base)) if base else value
        return ("^", value, power) if power and not inverse else value

    def bracket(self, opening):
        """(a, b], {a, b}, {x | condition}, |a|, or what stands in ( )."""
        if opening == "\\{" and self.accept("\\}"):
            return "\\emptyset"
        outer, self.bars = self.bars, opening in ("|", "\\{")
        inside, close = self.tree(), self.expect(*_CLOSE[opening])
        self.bars = outer
        if opening == "\\{" and close != "\\}":
            condition, _ = self.tree(), self.expect("\\}")
            if isinstance(inside, str) or isinstance(inside[0], Chain) and inside[2:] == ("\\RR",):
                return condition
            return (",", inside, *(condition[1:] if condition[0] == "," else (condition,)))
        if opening in ("(", "[", "\\{") and inside[0] == ",":
            return (opening + close, *inside[1:])
        if opening not in ("(", "["):
            return (opening + close, inside)
        if (opening == "(") != (close == ")"):
            raise Unreadable("brackets")
        return inside

    def environment(self, name):
        """A matrix; the equations of a system are a list."""
        if name in ("cases", "aligned"):
            return (self.tree(), self.expect("\\endcases", "\\endaligned", "\\endarray"))[0]
        if name not in ("matrix", "pmatrix", "bmatrix", "array"):
            raise Unreadable(name)
        rows = [[self.tree(1)]]
        while not self.accept("\\end" + name):
            if self.expect("&", "\\row") == "&":
                rows[-1].append(self.tree(1))
            elif self.next() != "\\end" + name:
                rows.append([self.tree(1)])
        return ("matrix", *(("row", *row) for row in rows))

def read(tokens):
    """The tree of an answer, without "the answer is" before it; (C) 12 is a choice with its value."""
    words = [token.lstrip('"').lower() for token in tokens[:4]]
    start = max((words.index(label) + 1 for label in ("answer", "option", "choice") if label in words), default=0)
    tokens = tokens[start + (words[start:start + 1] in (["is"], [":"])) if start else 0:]
    m = re.match(r'(?:(?:(\{) )?\( "?([A-H]) \)(?(1) \})(?: [.:-])?|"?([A-H])(?: [).:]| -(?= "))) (?! *(?:[,+]|"and|"or|-))',
                 " ".join(tokens) + " ")
    rest = tokens[len(m[0].split()):] if m else ()
    if m and not re.fullmatch('"?[A-Za-z]', "".join(rest)):
        value = read(rest) if rest else ""
        if re.fullmatch("[A-Za-z]", str(value)):
            raise Unreadable("two choices")
        return ("choice", m[2] or m[3], value) if rest else m[2] or m[3]
    reader = Reader(tokens)
    reader.accept("=")
    tree = reader.tree()
    if reader.at < len(tokens):
        raise Unreadable(reader.next())
    return tree

# --- values -------------------------------------------------------------------------------------------------

mp = MPContext()                                      # of its own, so that its precision is nobody else's
mp.dps = 60
LIMIT = 1 << 21                                       # bits of a number
EPSILON = mp.mpf(10) ** -25                           # between numbers of 60 digits, where sets are compared

def lift(x):
    return mp.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else x

def power(a, b):
    """a^b; exact for a fraction and an integer."""
    exact = isinstance(a, Fraction) and isinstance(b, Fraction) and b.denominator == 1
    size = max(a.numerator.bit_length(), a.denominator.bit_length()) if exact else abs(mp.mag(lift(a))) if a else 0
    if abs(b) * max(size, 1) > LIMIT:
        raise Unreadable("too large")
    return a ** b.numerator if exact else mp.power(lift(a), lift(b))

def root(a, n):
    """The real root of a negative number if n is odd."""
    real = isinstance(n, Fraction) and n.denominator == 1 and n % 2 == 1 and mp.im(lift(a)) == 0 and mp.re(lift(a)) < 0
    return -power(-a, 1 / n) if real else power(a, 1 / n)

def counting(function, name):
    """A factorial or binomial coefficient: exact for integers, by the gamma function for others."""
    def value(*args):
        if max(map(abs, args)) > 20_000:
            raise Unreadable("too large")
        whole = all(isinstance(x, Fraction) and x.denominator == 1 and x >= 0 for x in args)
        return Fraction(function(*map(int, args))) if whole else getattr(mp, name)(*map(lift, args))
    return value

_EXACT = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, " ": lambda a, b: a * b, "neg": lambda a: -a,
          "/": lambda a, b: a / b, "^": power, "root": root, "||": abs, "!": counting(math.factorial, "factorial"),
          "\\binom": counting(math.comb, "binomial")}
_ROUNDED = {"\\lfloor\\rfloor": mp.floor, "\\lceil\\rceil": mp.ceil, **{name: getattr(mp, name) for name in _FUNCTIONS}}

class Values:
    """Evaluates trees; a letter has a value that depends on its name and on the number of the trial."""

    def __init__(self, trial, known):
        self.trial, self.known, self.letters, self.scale = trial, known, set(), 8

    def __call__(self, tree):
        """A Fraction where that is exact, else a number of mpmath."""
        value = self.rule(tree)
        for part in (value.numerator, value.denominator) if isinstance(value, Fraction) else (value,):
            if not mp.isfinite(part):
                raise Unreadable("infinite")
            self.scale = max(self.scale, abs(mp.mag(part)) if part else 0)         # bits of the largest and the smallest
        if self.scale > LIMIT:
            raise Unreadable("too large")
        return value

    def rule(self, tree):
        op, *args = tree if isinstance(tree, tuple) else ("",)
        if tree in self.known:
            return self.known[tree]
        if not op and (tree[0].isdigit() or tree[0] == "."):
            return Fraction(tree)
        if tree in ("i", "e", "\\pi"):
            return {"i": mp.mpc(0, 1), "e": +mp.e, "\\pi": +mp.pi}[tree]
        if op in ("_", "'", "call") or not op and (tree[0] == '"' or _LETTER.fullmatch(tree)):
            self.letters.add(tree)
            random = Random(f"{tree} {self.trial}")
            value = Fraction(random.randrange(101, 400), 97) ** random.choice((1, -1))
            return value * {0: 1, 1: -1}.get(self.trial, random.choice((1, -1)))
        if op not in _EXACT and op not in _ROUNDED or op[:2] in ("\\l",) and not letters(tree):
            raise Unreadable("not evaluated")
        known, self.known = self.known, {**self.known, '"\\degree': mp.pi / 180} if op in _FUNCTIONS else self.known
        values, self.known = [self(arg) for arg in args], known
        try:
            if op in _EXACT and (op in ("^", "root", "!", "\\binom") or all(isinstance(value, Fraction) for value in values)):
                return _EXACT[op](*values)
            return (_EXACT | _ROUNDED)[op](*map(lift, values))
        except (ArithmeticError, ValueError, TypeError) as error:
            raise Unreadable(str(error)) from None

def evaluate(*trees, trial=0, known=()):
    """(values, digits that tell them apart, letters). Numbers that differ by more than the trees can hide differ."""
    digits = 30
    for _ in range(2):
        with mp.workdps(2 * digits):
            state = Values(trial, dict(known))
            values = [state(tree) for tree in trees]
        digits = 40 + int(0.7 * state.scale)
        if all(isinstance(value, Fraction) for value in values):
            break
        if state.scale > 20_000:
            raise Unreadable("too large")
    return values, digits, state.letters

def agree(a, b, known=()):
    """True if two trees have the same value, whatever their letters stand for."""
    for trial in range(6):
        (x, y), digits, found = evaluate(a, b, trial=trial, known=known)
        with mp.workdps(2 * digits):
            exact = isinstance(x, Fraction) and isinstance(y, Fraction)
            if x != y if exact else abs(lift(x) - lift(y)) > mp.mpf(10) ** -digits:
                return False
        if not found:
            break
    return True

def constant(tree):
    """The real number that a tree stands for."""
    (value,), _, found = evaluate(tree, known={'"unit': Fraction(1)})
    if found or mp.im(lift(value)):
        raise Unreadable("no real number")
    return value

def proportional(a, b, positive=False):
    """True if one tree is a multiple of the other, by a positive number."""
    ratios = []
    for trial in range(6):
        (x, y), _, found = evaluate(a, b, trial=trial)
        x, y = lift(x), lift(y)
        if not found or abs(x) < EPSILON or abs(y) < EPSILON:
            return False
        ratios.append(x / y)
    return all(abs(r / ratios[0] - 1) < EPSILON for r in ratios) and (not positive or mp.re(ratios[0]) > 0)

# --- comparison ---------------------------------------------------------------------------------------------

def leaves(tree):
    """The strings in a tree, without its operators."""
    return [tree] if isinstance(tree, str) else [leaf for part in tree[1:] for leaf in leaves(part)]

def letters(tree):
    return {leaf for leaf in leaves(tree) if _LETTER.fullmatch(leaf)} - {"e", "i", "\\pi"}

def replace(tree, old, new):
    if isinstance(tree, str):
        return new if tree == old else tree
    return (tree[0], *(replace(part, old, new) for part in tree[1:]))

def is_value(tree):
    """True for a number or an expression."""
    if isinstance(tree, str):
        return tree not in _CONSTANTS[1:]
    return tree[0] in ("call", "'", "_") or (tree[0] in _EXACT or tree[0] in _ROUNDED) and all(map(is_value, tree[1:]))

def inside(tree, x, name):
    """True if the number x is in the set that a tree describes; name: the letter of its relations."""
    op, *parts = tree if isinstance(tree, tuple) else (tree,)
    if op in ("\\RR", "\\emptyset"):
        return op == "\\RR"
    if op in ("\\cup", "\\cap", "\\setminus", "-") or op in _JOINTS and all(isinstance(part[0], Chain) for part in parts):
        found = [inside(part, x, name) for part in parts]
        return found[0] and not found[1] if op in ("\\setminus", "-") else any(found) if op in ("\\cup", '"or') else all(found)
    if op == "\\{\\}":
        return any(abs(lift(constant(part)) - x) < EPSILON for part in parts)
    if op in ("()", "(]", "[)", "[]") and len(parts) == 2:
        low, high = (mp.inf if part == "\\infty" else -mp.inf if part == ("neg", "\\infty") else lift(constant(part)) for part in parts)
        if low >= high or op[0] == "[" and low == -mp.inf or op[1] == "]" and high == mp.inf:
            raise Unreadable("no interval")
        return low + EPSILON < x < high - EPSILON or op[0] == "[" and abs(low - x) < EPSILON or op[1] == "]" and abs(high - x) < EPSILON
    if not isinstance(op, Chain) or set(op.ops) - {"<", "\\le", ">", "\\ge", "\\ne"}:
        raise Unreadable("no set")
    values = [lift(Values(0, {name: x})(part)) for part in parts]
    gaps = [b - a for a, b in zip(values, values[1:]) if not mp.im(a) and not mp.im(b)]
    tests = {"<": lambda d: d > EPSILON, "\\le": lambda d: d > -EPSILON, ">": lambda d: d < -EPSILON, "\\ge": lambda d: d < EPSILON,
             "\\ne": lambda d: abs(d) > EPSILON}
    return len(gaps) == len(op.ops) and all(tests[sign](gap) for sign, gap in zip(op.ops, gaps))

def same_sets(g, p):
    """Compare sets of real numbers at, beside, between and beyond all numbers that occur in them."""
    names = {name for tree in (g, p) for name in letters(tree)}
    if len(names) > 1:
        raise Unreadable("several letters")
    name = min(names, default="")
    edges = sorted({mp.mpf(0), *(lift(number) for tree in (g, p) for number in numbers_in(tree))})
    points = [mp.mpf(k) / 7 for k in range(-80, 80)] + [a + (b - a) / 2 for a, b in zip(edges, edges[1:])]
    points += [edge + step for edge in edges for step in (-10 ** 6, -mp.mpf(10) ** -9, 0, mp.mpf(10) ** -9, 10 ** 6)]
    for tree in g, p:                                      # a comma between relations that hold together is "and"
        if tree[0] == "," and not any(sum(inside(part, x, name) for part in tree[1:]) > 1 for x in points):
            g, p = (('"or', *t[1:]) if t is tree else t for t in (g, p))
    return all(inside(g, x, name) == inside(p, x, name) for x in points)

def numbers_in(tree):
    """The values of all parts of a tree that are real numbers."""
    try:
        found = [constant(tree)]
    except Unreadable:
        found = []
    return found + [x for part in (tree[1:] if isinstance(tree, tuple) else ()) for x in numbers_in(part)]

def expand(tree):
    """a \\pm b as two items of its list or set."""
    listed = tree[0] in (*_JOINTS, "\\{\\}")
    found = []
    for item in tree[1:] if listed else (tree,):
        if leaves(item).count("±") > 1:
            raise Unreadable("signs that may or may not go together")
        found += [replace(item, "±", sign) for sign in ("1", ("neg", "1"))] if "±" in leaves(item) else [item]
    return (tree[0] if listed else ",", *found) if listed or found[1:] else found[0]

_L = rf"(?:[A-Za-z]|\\(?:{_GREEK}))(?:_(?:\w+|\{{[^{{}}]*\}}))?'*"
_NAME = re.compile(rf"""{_L} | [A-Z]{{2,4}} | \\(?:angle|triangle|overline|vec){{?[A-Za-z]{{1,3}}}}? | \|[A-Z]{{2}}\| | \({_L}(?:,{_L})+\)
    | \\frac{{[A-Z]{{2}}}}{{[A-Z]{{2}}}} | \\frac{{dy}}{{dx}} | \w{{1,2}}(?::\w{{1,2}})+ | {_L}\({_L}\)
    | (?:[A-Zfghnp]|\\EE)(?:_\w)?'*(?:\^{{-1}})?(?:\([^()+]*\)|\[[^\[\]+]*\]) | .*\\(?:gcd|lcm|max|min|det|sum|prod|int|lim|lfloor|lceil|bmod).*
    | (?:the)?(?:area|perimeter|volume|length|sum|distance|ratio|probability|answer)""", re.VERBOSE)

def meaning(tree):
    """A chain of = as ("named", name, value), ("-", a, b) for an equation, or its value, if all of it holds."""
    if not isinstance(tree[0], Chain) or tree[0].ops[0] not in ("=", "\\approx", "\\in"):
        return tree
    (name, ops), *sides = tree
    named = bool(_NAME.fullmatch(name))
    if ops == ("=",) and number(name) and isinstance(sides[1], str) and _LETTER.fullmatch(sides[1]):                # 5 = x
        return ("named", sides[1], sides[0])
    if ops == ("\\in",) and named:
        return ("in", name, sides[1])
    if set(ops) - {"=", "\\approx"} or not named and re.fullmatch(r"[\d.]+", name):
        raise Unreadable("5 = 5 says nothing")
    first = max((*ops, "\\approx").index("\\approx") + 1, named + 1)
    exact, rough = sides[named:first], sides[first:]
    if not named and len(exact) == 2 and not rough and letters(tree) and not agree(*exact):
        return ("equation", *exact)
    if not all(same(exact[-1], x) for x in exact[:-1]) or not all(rounds(exact[-1], x) for x in rough):
        raise Unreadable("not equal")
    return ("named", name, exact[-1]) if named else exact[-1]

def decimal(tree):
    """-0.5 or 1.5 \\cdot 10^{-7} as a Number, else None."""
    if isinstance(tree, str) or tree[0] == "neg" and isinstance(tree[1], str):
        return number(tree if isinstance(tree, str) else "-" + tree[1])
    if tree[0] == "*" and tree[2][:2] == ("^", "10") and (d := decimal(tree[1])):
        ten = power(Fraction(10), constant(tree[2][2]))
        return Number(d.value * ten, d.digits, d.ulp * ten)

def rounds(exact, rough):
    """True if a decimal rounds, or cuts off, the exact value."""
    if same(exact, rough):
        return True
    d, percent = decimal(unitless(rough)), 100 if '"%' in leaves(rough) else 1
    error = abs(lift(constant(exact))) * percent - abs(lift(d.value)) if d else mp.inf
    return -lift(d.ulp) / 2 <= error < lift(d.ulp) if d else False

def unitless(tree):
    """A product without the unit at its end."""
    return unitless(tree[1]) if tree[0] in ("*", " ", "/") and all(leaf[0] == '"' or tree[0] == " " and tree[2][0] in "^/" and
                                                                  leaf.isdigit() for leaf in leaves(tree[2])) else tree

def same_value(g, p):
    """Compare expressions. A unit may be missing in one of them; p % is p, or p / 100 if that is no integer."""
    units = [{leaf for leaf in leaves(tree) if leaf[0] == '"'} - {'"unit'} for tree in (g, p)]
    known = {'"unit': Fraction(1)}
    if ('"%' in units[0]) != ('"%' in units[1]):
        percent = g if '"%' in units[0] else p
        hundred = constant(replace(percent, '"%', "1"))
        if not isinstance(hundred, Fraction) or leaves(percent).count('"%') > 1:
            return False
        return hundred >= 1 and agree(g, p, {'"%': Fraction(1)}) or (hundred / 100).denominator > 1 and agree(g, p, {'"%': Fraction(1, 100)})
    for a, b, extra in ((g, p, units[0] - units[1]), (p, g, units[1] - units[0])):                        # 5 J
        for unit in extra:
            a = replace(a, unit, unit[1:]) if len(unit) == 2 else a
        if extra and letters(b) and agree(a, b, known):
            return True
    if not all(units) or units[0] | units[1] < {'"\\degree', '"C', '"F'}:
        known |= dict.fromkeys(units[0] | units[1], Fraction(1))
    if agree(g, p, known):
        return True
    numbers = [decimal(unitless(tree)) for tree in (g, p)]
    if letters(g) or letters(p) or not any(d and d.digits for d in numbers) or units[0] != units[1] and all(units):
        return False
    exact = [constant(unitless(tree)) for tree in (g, p)]
    exact = [x if isinstance(x, Fraction) else Fraction(mp.nstr(x, 55)) for x in exact]
    return same_number(*(d or Number(x, 0, 0) for d, x in zip(numbers, exact)))

def assigned(tree):
    """({name: value}, are they in order) of x = 1, y = 2 and of (x, y) = (1, 2), else None."""
    items = [meaning(item) for item in tree[1:]] if tree[0] in _JOINTS else []
    if items and all(item[0] == "named" for item in items):
        names = {item[1]: item[2] for item in items}
        return (names, False) if len(names) == len(items) else None
    if tree[0] == "named" and tree[1][0] == "(" and tree[2][0] == "()":
        return dict(zip(tree[1][1:-1].split(","), tree[2][1:])), True

def items_of(tree):
    """(items, name) of a list or set; x = 1, x = 2 and x_1 = 1, x_2 = 2 and n = 2, 3 have one name for all."""
    items = [meaning(item) for item in expand(tree)[1:]]
    names = {item[1].split("_")[0] for item in items if item[0] == "named"}
    name = min(names, default="")
    if len(names) == 1 and items[0][0] == "named" and name.strip("()").split(",") == sorted(name.strip("()").split(",")):
        items = [item[2] if item[0] == "named" else item for item in items]
    return [x for i, x in enumerate(items) if tree[0] != "\\{\\}" or not any(same(x, y) for y in items[:i])], name

def paired(a, b):
    """True if the items of two lists can be paired, in any order."""
    for x in a:
        match = next((i for i, y in enumerate(b) if (x[0] == y[0] or not {"\\{\\}", "named"} & {x[0], y[0]}) and same(x, y)), None)
        if match is None:
            return False
        b = b[:match] + b[match + 1:]
    return not b

def difference(tree):
    """lhs - rhs of an equation, without a denominator at the top; None for other trees."""
    if tree[0] == "named" and _LETTER.fullmatch(tree[1]) and is_value(tree[2]) or tree[0] == "equation":
        a, b = tree[1:]
        return ("-", ("*", a, b[2]), b[1]) if b[0] == "/" else ("-", a, b)

def same(g, p):
    """True if two trees mean the same."""
    if g == p:
        return True
    g, p = (meaning(expand(tree)) for tree in (g, p))
    kinds = g[0], p[0]
    if "words" in kinds and not {"named", "choice"} & set(kinds):
        return False
    if "choice" in kinds:
        (g_letter, g_value), (p_letter, p_value) = (t[1:] if t[0] == "choice" else (t, t) for t in (g, p))
        if kinds[0] == kinds[1] or g_letter == p_letter:
            return g_letter == p_letter and (kinds[0] != kinds[1] or same(g_value, p_value))
        return same(g_value, p_value)
    if kinds == ("named", "named"):
        dummies = [re.fullmatch(r"(\w)\((\w)\)", tree[1]) for tree in (g, p)]                             # f(x) and f(t)
        if g[1] == p[1] or all(dummies) and dummies[0][1] == dummies[1][1]:
            return same(*(replace(t[2], d[2], "\\ell") if d else t[2] for t, d in zip((g, p), dummies)))
    names = assigned(g), assigned(p)
    if all(names):
        indexed = not names[0][1] and not names[1][1] and len({n.split("_")[0] for n in (*names[0][0], *names[1][0])}) == 1
        return indexed and paired(items_of(g)[0], items_of(p)[0]) or names[0][0].keys() == names[1][0].keys() and all(
            same(value, names[1][0][name]) for name, value in names[0][0].items())
    for given, other in ((names[0], p), (names[1], g)):
        if given and other[0] == "()":                     # names in another order than the alphabet's: of the gold answer only
            values = list(given[0].values()) if given[1] else [given[0][name] for name in sorted(given[0])]
            ordered = not given[1] or other is p or list(given[0]) == sorted(given[0])
            return ordered and len(values) == len(other) - 1 and all(map(same, values, other[1:]))
    equations = difference(g), difference(p)
    if all(equations):
        return proportional(*equations)
    if "equation" in kinds:
        return False
    if "in" in kinds:                                      # k \in Z
        return (kinds[0] != kinds[1] or g[1] == p[1]) and same(*(tree[2] if tree[0] == "in" else tree for tree in (g, p)))
    if any(_LETTER.fullmatch(str(tree[2])) for tree in (g, p) if tree[0] == "named"):                    # A = B is not B
        return False
    if "named" in kinds:
        return kinds != ("named", "named") and same(*(tree[2] if tree[0] == "named" else tree for tree in (g, p)))
    if is_value(g) and is_value(p):
        return same_value(g, p)
    for a, b in ((g, p), (p, g)):
        if a[0] == "\\{\\}" and len(a) == 2 and is_value(b):
            return same(a[1], b)
        if a[0] == ":" and is_value(b) and len(a) == 3 and not re.fullmatch(r"\d\d", str(a[2])):       # no time of day
            return lift(constant(b)) % 1 != 0 and same_value(("/", *a[1:]), b)
    if all(kind in (*_JOINTS, "\\{\\}") for kind in kinds):
        (a, name), (b, other) = items_of(g), items_of(p if g[0] != "\\{\\}" else ("\\{\\}", *expand(p)[1:]))
        if (name == other or not name or not other) and paired(a, b) and (kinds[0] == kinds[1] or not any(isinstance(item[0], Chain) for item in a)):
            return True
    if kinds[0] == kinds[1] and kinds[0] in ("()", "[]", "(]", "[)", ":", "matrix", "row"):
        return len(g) == len(p) and all(map(same, g[1:], p[1:]))
    if "matrix" in kinds:
        g, p = (t if t[0] != "neg" else ("*", ("neg", "1"), t[1]) for t in (g, p))
        g, p = (("matrix", *(("row", *(("*", t[1], x) for x in row[1:])) for row in t[2][1:]))
                if t[0] in ("*", " ") and t[2][0] == "matrix" else t for t in (g, p))
        return g[0] == p[0] == "matrix" and same(g, p)
    if all(isinstance(kind, Chain) and len(kind.ops) == 1 for kind in kinds) and len(letters(("", *g[1:], *p[1:]))) > 1:
        flips = [kind.ops[0] in (">", "\\ge") for kind in kinds]
        signs = [{">": "<", "\\ge": "\\le"}.get(kind.ops[0], kind.ops[0]) for kind in kinds]
        a, b = (("-", t[2], t[1]) if flip else ("-", *t[1:]) for t, flip in zip((g, p), flips))
        return signs[0] == signs[1] in ("<", "\\le") and proportional(a, b, positive=True)
    return not is_value(g) and not is_value(p) and same_sets(g, p)

# --- answers ------------------------------------------------------------------------------------------------

def variants(text, gold):
    """Readings of an answer: 1,234 is a number or a list; 2e-7 in a response is a number or 2e - 7."""
    text = re.sub(r"(?<![\w.])(\d+\.\d+)[eE]([-+]?\d+)|(?<![\w.])(\d+)[eE](\d+|[-+]\d\d+)(?![\d.])",
                  lambda m: f"{m[1] or m[3]}\\cdot 10^{{{int(m[2] or m[4])}}}", text)
    if not gold and re.fullmatch(r"\s*-?\d+[eE][-+]\d\s*", text):
        return text, re.sub("[eE]", r"\\cdot 10^{", text.strip()) + "}"
    joined = re.sub(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)", lambda m: m[0].replace(",", ""), text)
    if joined == text or re.search(r"[(\[]|\\\{", text):
        return (text,)
    return (joined,) if ",0" in text else (text, joined)

def readable(answer):
    """False for a gold answer that is empty or broken: such a problem must never be scored as right."""
    tokens = tokenize(answer)
    content = any(t.lstrip('"\\')[:1].isalnum() and t not in ("\\frac", "\\sqrt") for t in tokens)
    return content and tokens.count("{") == tokens.count("}") and not re.search(
        r"(?<!\\)\{\}|[-+*/^_=(]$|\d{4300}", spelled(tokens))

@lru_cache(50_000)
def same_answer(gold, pred):
    """True if two answers mean the same. May take any time and memory, so only workers call it."""
    if not readable(gold):
        return False
    if spelled(tokenize(gold)) == spelled(tokenize(pred)):
        return True
    trees = [], []
    for found, text in zip(trees, (gold, pred)):
        for variant in variants(text, text is gold):
            try:
                found.append(read(tokenize(variant)))
            except (Unreadable, RecursionError):
                pass
    for g, p in product(*trees):
        try:
            if same(g, p):
                return True
        except Unreadable:
            pass
    return False
