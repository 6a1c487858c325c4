"""Tests of support/answers.py: every verdict follows from mathematics; the last test from one change of one character."""

import random
import re
import time

import pytest

import reward
from reward import extract_boxed, score_batch, verify_math
from support.answers import same_answer

SECONDS = 60                                    # generous: the machines that run tests are busy

# --- math ------------------------------------------------------------------------------------------------------------

CASES = [                                       # (response, gold answer, verdict, why)
    ('The answer is \\boxed{0.0833333333333333}.', '\\frac{1}{12}', True, 'decimal with many digits'),
    ('The answer is \\boxed{(1,4.5)}.', '(1,\\frac{9}{2})', True, 'tuple'),
    ('The answer is \\boxed{-34x-45y+20z-100=0}.', '34x+45y-20z+100=0', True, 'same equation times -1'),
    ('The answer is \\boxed{33.3}.', '\\frac{100}{3}', False, 'too few digits'),
    ('The answer is \\boxed{0.333}.', '\\frac{1}{3}', False, 'too few digits'),
    ('The answer is \\boxed{y=-\\frac12x+\\frac34}.', '2x+4y-3=0', True, 'same line'),
    ('The answer is \\boxed{\\text{13}}.', '13', True, 'text wrapper'),
    ('The answer is \\boxed{4\\sqrt(2)}.', '4', False, 'must not stop at the first token'),
    ('The answer is \\boxed{2021}.', '\\pm 2021', False, 'one of two values'),
    ('The answer is \\boxed{1:00}.', '12:00', False, 'clock times'),
    ('The answer is \\boxed{\\frac{1}{2006!}}.', '\\frac{1}{2004!}', False, 'tiny numbers are not all equal'),
    ('The answer is \\boxed{0.0000001}.', '0.0000002', False, 'tiny numbers are not all equal'),
    ('The answer is \\boxed{1+\\frac{1}{\\mathrm e}}.', '1-\\frac{1}{\\mathrm e}', False, 'sign'),
    ('The answer is \\boxed{2\\frac{1}{2}}.', '2.5', True, 'mixed number'),
    ('The answer is \\boxed{1 1/4}.', '5/4', True, 'mixed number in plain text'),
    ('The answer is \\boxed{2 2/3}.', '2', False, 'mixed number'),
    ('The answer is \\boxed{D=(0,1.5)}.', 'D=(0,1)', False, 'interval end'),
    ('The answer is \\boxed{n=1,2,3}.', 'n=2,3,4', False, 'list'),
    ('The answer is \\boxed{15}.', '15\\mbox{ cm}^2', True, 'unit in the gold answer'),
    ('The answer is \\boxed{90}.', '90^\\circ', True, 'degrees sign'),
    ('The answer is \\boxed{\\frac{\\pi}{2}}.', '90^\\circ', False, 'radians are not degrees'),
    ('The answer is \\boxed{[1,2]}.', '(1,2)', False, 'closed against open'),
    ('The answer is \\boxed{(2,1)}.', '(1,2)', False, 'order in a tuple'),
    ('The answer is \\boxed{2,1}.', '1,2', True, 'a list of solutions has no order'),
    ('The answer is \\boxed{5, 6}.', '5', False, 'extra answer'),
    ('The answer is \\boxed{10{,}000}.', '10000', True, 'thousands separator'),
    ('The answer is \\boxed{12_{3}}.', '12', False, 'base 3'),
    ('The answer is \\boxed{\\text{E}}.', 'E', True, 'choice letter'),
    ('The answer is \\boxed{34.0}.', '34', True, 'trailing zero'),
    ('The answer is \\boxed{034}.', '34', True, 'leading zero (AIME)'),
    ('The answer is \\boxed{10001}.', '10000', False, 'no relative tolerance on integers'),
    ('The answer is \\boxed{50}.', '0.5', False, 'no factor of 100'),
    ('The answer is \\boxed{9^{9^{9^{9}}}}.', '5', False, 'power tower, must answer at once'),
    ('The answer is \\boxed{}.', '5', False, 'empty box'),
    ('The answer is \\boxed{5}.', '', False, 'empty gold is never right'),
    ('So \\boxed{5} no wait, \\boxed{7}.', '7', True, 'last box counts'),
    ('The answer is \\boxed{42', '42', False, 'unclosed box'),
    ('The answer is 42.', '42', False, 'no box'),
    ('It is \\boxed 2', '2', True, 'box without braces'),
    ('maybe 1, 2, 3, 4, 5, 6, 7, 8, 9', '7', False, 'answer dumping'),
    ('Note 2003^{2002^{2001}} mod 1000. \\boxed{009}', '9', True, 'tower in the prose, answer in under a second'),
    ('<think>try \\boxed{3}</think> done', '3', False, 'box only inside the thinking'),
    ('\\boxed{\\frac{1}{\\sqrt{2}}}', '\\frac{\\sqrt{2}}{2}', True, 'nested braces'),
]

RIGHT = [                                       # (kind, gold answer, other ways to write it)
    ("decimal", r"\frac{1}{7}", ["0.142857142857", "0.14285714285714285", "1/7", r"\dfrac{1}{7}", r"\tfrac17"]),
    ("decimal", "0.125", [r"\frac18", "1/8", ".125", "0.1250", r"1.25\times 10^{-1}"]),
    ("decimal", r"\sqrt{2}", ["1.41421356", r"\sqrt2", r"\frac{2}{\sqrt{2}}", "sqrt(2)", r"2^{1/2}", r"\sqrt[4]{4}"]),
    ("decimal", r"\pi", ["3.14159265", "π", r"\pi "]),
    ("tuple", r"(3,\frac{1}{2})", ["(3, 0.5)", r"\left(3,\frac12\right)", "(3,1/2)", r"\left( 3, \tfrac{1}{2} \right)"]),
    ("tuple", "(1,-2,3)", ["( 1, -2, 3 )", r"(1,\,-2,\,3)"]),
    ("tuple", "(5,2)", [r"(x,y)=(5,2)", r"\langle 5,2\rangle"]),
    ("interval", r"(-\infty,3]", [r"(-\infty, 3.0]", r"x\le 3", r"x \leq 3", r"x\in(-\infty,3]", r"3 \ge x"]),
    ("interval", r"[0,\frac{1}{2})", ["[0,0.5)", r"\left[0,\frac{1}{2}\right)", r"0\le x<\frac12"]),
    ("interval", r"x>2", [r"(2,\infty)", "2<x", r"x\in (2, \infty)", r"(2, +\infty)"]),
    ("set", r"\{1,2,3\}", [r"\{3,1,2\}", "1,2,3", r"\left\{1, 2, 3\right\}", r"\lbrace 1,2,3\rbrace"]),
    ("set", r"\emptyset", [r"\varnothing", r"\{\}", "∅"]),
    ("set", "5", [r"\{5\}", r"x\in\{5\}"]),
    ("union", r"(-\infty,-1)\cup(1,\infty)", [r"(1,\infty)\cup(-\infty,-1)", r"(-\infty, -1) \cup (1, +\infty)", "(-∞,-1)∪(1,∞)"]),
    ("union", r"[0,1]\cup\{3\}", [r"\{3\}\cup[0,1]"]),
    ("equation", "x+y=3", ["y=3-x", "2x+2y=6", "3-x-y=0", "x=3-y"]),
    ("equation", "x^2+y^2=4", ["y^2+x^2-4=0", r"x^2 = 4-y^2"]),
    ("equation", "y=2x+1", ["2x+1", "y-2x=1", "2x-y+1=0", "y = 1+2x"] ),
    ("unit", r"15\text{ cm}^2", ["15", "15 cm^2", r"15\,\text{cm}^2", r"15\mathrm{~cm}^2"]),
    ("unit", "12", [r"12\text{ meters}", "12 hours", r"12\mbox{ inches}", r"12\,\mathrm{kg}", r"12 \text{ m/s}", r"12\ \text{units}"]),
    ("unit", r"2.5\text{ hours}", [r"\frac52", "2.5", r"2\frac12\text{ hours}"]),
    ("degrees", r"45^\circ", ["45", r"45^{\circ}", "45°", "45 degrees", r"45\degree", r"45\text{ degrees}"]),
    ("degrees", r"\frac{1}{2}", [r"\sin 30^\circ", r"\cos(60^\circ)"]),
    ("percent", r"50\%", ["50%", "50", r"50\text{ percent}", r"0.5", "50 percent"]),
    ("percent", "12.5", [r"12.5\%", r"12\frac12\%"]),
    ("mixed", r"3\frac{1}{4}", ["3.25", r"\frac{13}{4}", "13/4", "3 1/4", r"3 \frac14", r"3\tfrac{1}{4}"]),
    ("mixed", r"-\frac{5}{2}", [r"-2\frac12", "-2 1/2", "-2.5", r"\frac{-5}{2}", r"-\frac52", r"\frac{5}{-2}"]),
    ("thousands", "1234567", ["1,234,567", r"1{,}234{,}567", r"1\,234\,567", "1 234 567", r"1,\!234,\!567", "1234567.0"]),
    ("thousands", "10,000", ["10000", r"10{,}000", r"10^4", r"1\times10^4"]),
    ("clock", "1:05", ["01:05", r"1:05\text{ p.m.}", r"\text{1:05}"]),
    ("base", "101_2", ["101_{2}", r"101_{2}", r"(101)_2"]),
    ("factorial", "120", ["5!", r"\frac{6!}{6}", r"\binom{10}{3}"]),
    ("factorial", r"\frac{1}{2004!}", [r"\frac{2005}{2005!}"]),
    ("tiny", "0.0000002", [r"2\times10^{-7}", r"2 \cdot 10^{-7}", r"\frac{2}{10^7}", r"0.2\times 10^{-6}"]),
    ("scientific", r"3\times 10^8", ["300000000", r"3.0\times10^{8}", r"3 \cdot 10^8", "3e8", "300,000,000"]),
    ("scientific", r"1.6\times 10^{-19}", [r"1.60 \times 10^{-19}", "1.6e-19", r"16\cdot10^{-20}"]),
    ("text", r"\text{Sunday}", ["Sunday", "sunday", r"\textbf{Sunday}", r"\mbox{Sunday}", r"\mathrm{Sunday}"]),
    ("text", "even", [r"\text{even}", r"\text{Even}"]),
    ("choice", "C", ["(C)", r"\text{(C)}", r"\textbf{(C)}", r"\mathrm{C}", r"\text{C}", "C."]),
    ("list", "1,-2", ["-2, 1", r"x=1,x=-2", r"x=-2\text{ or }x=1", r"1\text{ and }-2", r"\{1,-2\}", "1 or -2", "-2;1"]),
    ("list", "(1,2),(3,4)", ["(3,4), (1,2)", r"\{(1,2),(3,4)\}", r"(1,2)\text{ and }(3,4)"]),
    ("plus-minus", r"\pm 3", ["3,-3", r"-3\text{ or }3", r"x=\pm3", "±3", r"\{-3,3\}", "+-3"]),
    ("plus-minus", r"1\pm\sqrt{2}", [r"1+\sqrt2,1-\sqrt2", r"x=1\pm\sqrt2"]),
    ("matrix", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", [r"\begin{bmatrix}1 & 2\\ 3 & 4\end{bmatrix}", r"\begin{pmatrix}1&2\\3&4.0\end{pmatrix}", r"\left(\begin{matrix}1&2\\3&4\end{matrix}\right)"]),
    ("matrix", r"\begin{pmatrix}\frac12\\-1\end{pmatrix}", [r"\begin{pmatrix}0.5\\-1\end{pmatrix}", r"\begin{bmatrix} 1/2 \\ -1 \end{bmatrix}"]),
    ("root", r"2\sqrt{3}", [r"\sqrt{12}", r"2\sqrt3", r"\frac{6}{\sqrt{3}}", r"2 \cdot \sqrt{3}", "2sqrt(3)", "2√3", r"\sqrt{3}\cdot2"]),
    ("root", r"\frac{\sqrt{6}-\sqrt{2}}{4}", [r"\frac{\sqrt6-\sqrt2}4", r"\frac14(\sqrt6-\sqrt2)", r"\frac{\sqrt{2}(\sqrt{3}-1)}{4}"]),
    ("root", r"\sqrt{2}+\sqrt{3}", [r"\sqrt{5+2\sqrt{6}}", r"\sqrt3+\sqrt2"]),
    ("complex", "3+4i", ["4i+3", r"3+4\mathrm{i}", "(2+i)^2", r"3 + 4 i"]),
    ("complex", "2i", [r"(1+i)^2", r"2\text{i}"]),
    ("money", r"\$5", ["5", r"\$5.00", "$5", "5 dollars", r"5\text{ dollars}"]),
    ("money", "1250", [r"\$1,250", r"\$1{,}250.00", r"1,250\text{ dollars}"]),
    ("assignment", "5", ["x=5", "x = 5", "n=5", r"AB=5", r"\theta=5", r"x=2+3=5", "2+3=5", r"2 \times 3 - 1 = 5", "10/2=5", r"\frac{10}{2} = 5", r"f(2)=5", r"a_1=5", r"x \approx 5"]),
    ("polynomial", "x^2+2x+1", ["(x+1)^2", "1+2x+x^2", r"x^2 + 2 x + 1", r"(x+1)(x+1)", "x^{2}+2x+1"]),
    ("polynomial", "2x(x-3)", ["2x^2-6x", r"2x\left(x-3\right)", r"2x \cdot (x-3)"]),
    ("expression", r"\frac{x+1}{x-1}", [r"1+\frac{2}{x-1}", r"\frac{1+x}{x-1}", r"(x+1)/(x-1)"]),
    ("expression", r"2^{2024}-1", [r"-1+2^{2024}", r"4^{1012}-1"]),
    ("expression", r"e^{2}", [r"\mathrm{e}^2", "e^2", r"\exp(2)"]),
    ("expression", r"\ln 2", [r"\ln(2)", r"\frac{1}{2}\ln 4"]),
    ("expression", r"\frac{n(n+1)}{2}", [r"\frac{n^2+n}{2}", r"\frac12n(n+1)", r"n(n+1)/2"]),
    ("expression", r"\frac{2\pi}{3}", [r"\frac23\pi", r"2\pi/3", r"\frac{2}{3} \pi", r"\frac{4\pi}{6}"]),
    ("big", r"5\text{ million}", ["5 million"]),
    ("decimal", r"\frac{1}{3}", ["0.33333333333333331", r"0.\overline{3}", "0.3333333333"]),
    ("decimal", r"\frac{100}{3}", ["33.333333333333336", r"33.\overline{3}", r"33\frac{1}{3}"]),
    ("decimal", r"0.08\overline{3}", [r"\frac{1}{12}", "0.0833333333333333"]),
    ("tuple", "(1,2)", ["x=1, y=2", "y=2, x=1", "a=1,b=2"]),
    ("tuple", r"(30^\circ,\frac{\pi}{2})", [r"(30,\frac12\pi)"]),
    ("interval", "[2,5)", [r"\{x\mid 2\le x<5\}", r"x \in [2,5)", "5>x>=2", r"2\leqslant x\lt 5"]),
    ("union", r"(-\infty,1)\cup(2,\infty)", [r"x<1\text{ or }x>2"]),
    ("union", "[0,2]", [r"[0,1]\cup[1,2]"]),
    ("union", r"\mathbb{R}", [r"(-\infty,\infty)", r"x\in\mathbb R"]),
    ("equation", "y = 2", ["2y=4", "2", "y-2=0"]),
    ("equation", "34x+45y-20z+100=0", ["34x+45y-20z=-100", "-34x-45y+20z=100"]),
    ("equation", r"\frac{x^2}{4}+\frac{y^2}{9}=1", ["9x^2+4y^2=36"]),
    ("equation", "y^2=4x", [r"x=\frac{y^2}{4}"]),
    ("text", "13", ["**13**", r"\textbf{13}", r"\text{ 13 }"]),
    ("text", r"\text{Yes}", ["yes", "Yes.", r"\mathrm{Yes}"]),
    ("plus-minus", r"\frac{1\pm\sqrt5}{2}", [r"\frac{1+\sqrt5}{2},\frac{1-\sqrt5}{2}"]),
    ("plus-minus", r"\pm 1, \pm 2", ["1,-1,2,-2", r"\{-2,-1,1,2\}"]),
    ("list", r"30^\circ, 60^\circ", [r"60^\circ, 30^\circ", "30, 60", r"60^\circ\text{ and }30^\circ"]),
    ("list", "n=2,3,4", ["4,3,2", "n=2, n=3, n=4", r"n\in\{2,3,4\}"]),
    ("list", r"1, 2, \text{ and } 3", ["1,2,3", "3;2;1"]),
    ("unit", r"1.5\text{ m}", ["1.5 m", "1.5m", r"1.5\,\mathrm{m}", r"\frac32"]),
    ("unit", r"30\pi \text{ cm}^3", [r"30\pi", r"30\pi\,\mathrm{cm}^3"]),
    ("unit", "9.8", [r"9.8\ \mathrm{m/s^2}", r"9.8 \mathrm{~m} / \mathrm{s}^{2}", r"9.8\text{ m/s}^2"]),
    ("unit", r"5\text{ L}", ["5"]),
    ("unit", r"1,024\text{ cm}", ["1024", r"1{,}024\text{ cm}"]),
    ("thousands", "10000", [r"10\!,\!000", r"10\,000", r"10\;000"]),
    ("clock", r"8:15 \text{ p.m.}", ["8:15", "08:15", "8:15 PM", r"8:15\text{ pm}"]),
    ("ratio", r"1:\sqrt{3}:2", [r"1 : \sqrt3 : 2", "1:√3:2"]),
    ("base", "413_5", ["(413)_5", "413_{5}"]),
    ("tower", r"2^{2^{3}}", ["256", "2^8", "2^{2^3}"]),
    ("tower", r"2^{2^{n}}", ["2^{2^n}"]),
    ("infinity", r"\infty", [r"+\infty", "∞"]),
    ("complex", "1+i", [r"\sqrt2 e^{i\pi/4}", r"\frac{2}{1-i}"]),
    ("matrix", r"\begin{pmatrix}-7\\16\\5\end{pmatrix}", [r"\begin{bmatrix} -7 \\ 16 \\ 5 \end{bmatrix}"]),
    ("logarithm", r"\log_2 8", ["3"]),
    ("escapes", r"\frac{1}{2}", [r"\\frac{1}{2}", "½"]),
]
WRONG = [                                       # (kind, gold answer, near misses)
    ("decimal", r"\frac{1}{7}", ["0.142", "0.14286", "0.142858142857", "0.1428571429999", "7"]),
    ("decimal", r"\sqrt{2}", ["1.41", "1.4142", "1.41421366", r"\sqrt{3}", "2", r"-\sqrt{2}"]),
    ("decimal", "0.125", ["0.12", "0.1250001", "1.25"]),
    ("integer", "1000000", ["1000001", "999999", "1000000.5", "1000000.0000001"]),
    ("tuple", "(1,2,3)", ["(1,2)", "(3,2,1)", "(1,2,4)", "1,2,3", r"\{1,2,3\}"]),
    ("tuple", "(5,2)", ["[5,2)", "(2,5)", "5,2", "(5,2.1)", "5"]),
    ("interval", "[0,1)", ["(0,1)", "[0,1]", "(0,1]", "[0,2)", "[0,1.01)"]),
    ("interval", r"(-\infty,3]", [r"(-\infty,3)", r"[3,\infty)", "x<3", r"x\ge3", "3"]),
    ("set", r"\{1,2,3\}", [r"\{1,2\}", r"\{1,2,3,4\}", r"\{1,2,4\}", "(1,2,3)"]),
    ("set", r"\emptyset", [r"\{0\}", "0"]),
    ("union", r"(-\infty,-1)\cup(1,\infty)", [r"(-\infty,-1]\cup[1,\infty)", r"(-\infty,1)\cup(1,\infty)", r"(1,\infty)", r"(-1,1)"]),
    ("equation", "x+y=3", ["x+y=4", "x-y=3", "3", "x+y", "x+y+z=3", "0=0", "x=x"]),
    ("equation", "y=2x+1", ["y=2x-1", "y=x+1", "2x", "1=1"]),
    ("unit", r"15\text{ cm}^2", [r"16\text{ cm}^2", r"15\text{ m}^2", "15 kg", "225"]),
    ("unit", "12", [r"13\text{ meters}", r"12\text{ million}", "1.2 m"]),
    ("degrees", r"45^\circ", [r"\frac{\pi}{4}", r"46^\circ", r"4.5^\circ"]),
    ("percent", r"50\%", ["5", r"5\%", "5000", "0.05"]),
    ("percent", "0.5", ["50", "5", "0.005"]),
    ("mixed", r"3\frac{1}{4}", [r"\frac34", "3", "3.75", "3/4", "31/4", "3 1/2"]),
    ("mixed", "5/2", ["2", "2 1/3", "21/2", "2 2"]),
    ("thousands", "1234567", ["1,234,568", "1,234", "234567", "1.234567"]),
    ("thousands", "10,000", ["10", "0", "10,00", "1000"]),
    ("clock", "1:05", ["1:50", "13:05", "105", "1.05", "5:01"]),
    ("base", "101_2", ["101", "5", "101_3", "111_2"]),
    ("base", "101", ["101_2"]),
    ("factorial", "120", ["5", "4!", "6!"]),
    ("tiny", "0.0000002", ["0.0000003", "0", "2e-8", r"2\times10^{-6}"]),
    ("tiny", r"10^{-30}", [r"10^{-31}", "0", r"2\cdot 10^{-30}"]),
    ("tiny", r"\frac{\pi}{1000!}", [r"\frac{\pi}{1001!}", "0"]),
    ("scientific", r"3\times 10^8", [r"3\times10^9", r"3\times10^{-8}", "3", "10^8", r"2.998\times10^8"]),
    ("text", r"\text{Sunday}", ["Monday", "day", "sun", "ysadnu"]),
    ("choice", "C", ["(D)", r"\text{A}", "c", "CC"]),
    ("list", "1,-2", ["1", "-2", "1,2", "1,-2,3", "(1,-2)", "-1,2"]),
    ("list", "5", ["5,5", "5,6", "5 or 6", "5;6"]),
    ("thousands", "123", ["0,123", "00,123", r"0{,}123", r"0\,123", "0 123"]),
    ("list", "(1,2),(3,4)", ["(1,2),(4,3)", "(1,2)", "(1,2,3,4)"]),
    ("plus-minus", r"\pm 3", ["3", "-3", "3,3", "0", r"\pm 4"]),
    ("plus-minus", "3", [r"\pm 3"]),
    ("matrix", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", [r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}", "1,2,3,4", "(1,2,3,4)", "-2"]),
    ("matrix", r"\begin{pmatrix}1\\2\end{pmatrix}", [r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"]),
    ("root", r"2\sqrt{3}", ["2", r"\sqrt{3}", r"\sqrt{6}", r"3\sqrt{2}", "12", r"2\sqrt{3}+1"]),
    ("root", r"\sqrt{2}+\sqrt{3}", [r"\sqrt{5}", r"\sqrt{2}-\sqrt{3}", r"\sqrt{5+2\sqrt{5}}"]),
    ("complex", "3+4i", ["3-4i", "4+3i", "3", "7", "5", "3+4"]),
    ("money", r"\$5", [r"\$50", r"\$5.01", "0.05"]),
    ("assignment", "5", ["x=6", "x+y=5", "5=5", "x=5=6", "2x=5", "x>5", "2+3=6", "2+3=x", "3=5", "-3=5", "+=5"]),
    ("assignment", "x=5", ["y=5", "x=-5", "x^2=25"]),
    ("polynomial", "x^2+2x+1", ["x^2+2x-1", "(x-1)^2", "x+1", "x^2+2y+1", "x^3+2x+1"]),
    ("expression", "x", [r"|x|", r"\sqrt{x^2}", "y", "X"]),
    ("expression", r"2^{2024}-1", [r"2^{2024}", r"2^{2024}+1", r"2^{2023}-1"]),
    ("expression", r"10^{100}", [r"10^{100}+1", r"10^{99}"]),
    ("expression", r"\frac{2\pi}{3}", [r"\frac{\pi}{3}", r"\frac{2}{3}", r"2\pi", "2.094"]),
    ("decimal", r"0.\overline{3}", ["0.3", "0.33", r"0.\overline{2}"]),
    ("decimal", "123456789", ["1.2345679e8", "1.2345679e+08", "123456789.1"]),
    ("decimal", "12345678901234568", ["12345678901234567.0"]),
    ("digits", "34", ["3 4", "3.4", "3,4"]),
    ("tuple", r"(3,\frac{\pi}{2})", [r"(3,90^\circ)", "(3,90)"]),
    ("tuple", "(1,2)", ["x=2, y=1"]),
    ("interval", r"(0,\infty)", [r"(0,\infty]", r"x\ge0"]),
    ("union", r"(0,1)\cup(1,2)", ["(0,2)"]),
    ("equation", "34x+45y-20z+100=0", ["34x+45y-20z=100"]),
    ("equation", r"\frac{x^2}{4}+\frac{y^2}{9}=1", ["4x^2+9y^2=36"]),
    ("equation", "y^2=4x", [r"y=2\sqrt{x}", "4x"]),
    ("unit", "4", ["4 does not work", "4 times 5", "4 squared", "4 dozen", r"\neq 4", "4x", "4:3"]),
    ("unit", "2xy", ["2", "2x"]),
    ("clock", r"8:15 \text{ p.m.}", [r"8:15 \text{ a.m.}", "8:51"]),
    ("ratio", "-1:2", ["1:2", "2:-1"]),
    ("plus-minus", r"\frac{1\pm\sqrt5}{2}", [r"\frac{1+\sqrt5}{2}"]),
    ("choice", "I", ["-i", "|i|"]),
    ("assignment", "25", ["x^2=25"]),
    ("tower", r"2^{2^{2024}}", [r"2^{2^{2023}}"]),
    ("infinity", r"\infty", [r"-\infty", "5"]),
    ("complex", r"e^{\frac{2\pi i}{3}}", [r"-\frac12-\frac{\sqrt3}{2}i"]),
    ("types", "(1,2)", ["2x+1", "y=2x+1", r"\begin{pmatrix}1\\2\end{pmatrix}"]),
    ("tower", "5", [r"9^{9^{9^{9}}}", r"(9^9)^{9^9}", r"99999999!", r"9!!!!!!!", r"2^{99999999}", r"10^{10^{10}}"]),
    ("empty", "5", ["", " ", r"\text{}", r"{}", ".", "?", r"\frac{}{}", r"\frac", "x", "None"]),
]


def rows():
    for response, answer, expected, _ in CASES:
        yield response, answer, expected
    for table, expected in ((RIGHT, True), (WRONG, False)):
        for _, answer, boxes in table:
            for box in boxes:
                yield f"The answer is \\boxed{{{box}}}.", answer, expected


@pytest.fixture(scope="module")
def verdicts():
    """All rows in one batch, so that workers see them as in training."""
    table = list(rows())
    scores = score_batch([r for r, _, _ in table], [{"answer": a} for _, a, _ in table], timeout=SECONDS)
    return {(r, a): score for (r, a, _), score in zip(table, scores)}


@pytest.mark.parametrize("response, answer, expected", list(rows()))
def test_math_verdict(verdicts, response, answer, expected):
    score = verdicts[response, answer]
    assert score.reward == float(expected), score
    assert score.status in (("right",) if expected else ("wrong", "no_answer"))


def test_a_worker_is_asked_for_expressions_only(monkeypatch):
    monkeypatch.setattr(reward, "start_workers", lambda workers: pytest.fail("a plain number reached the pool"))
    responses = [r"\boxed{3/4}", r"\boxed{0.75}", r"\boxed{1e400}", r"\boxed{" + "9" * 300 + "}", "no box", r"\boxed{0.7}"]
    assert [s.reward for s in score_batch(responses, [{"answer": "0.75"}] * 6)] == [1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("text, expected", [
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"), (r"\boxed{\{1,2\}}", r"\{1,2\}"), (r"\boxed{5} and \boxed{", "5"),
    (r"\fbox{7}", "7"), (r"\boxed{\boxed{3}}", "3"), (r"\boxed{5", None), (r"\boxed", ""), ("", None),
    (r"\boxed {4}", "4"), (r"\boxed -3.", "-3"), (r"put it in \boxed please", ""), (r"<think>\boxed{1}", None),
    (r"<think>\boxed{1}</think>\boxed{2}", "2"), (r"\boxed{1}</think>", None), (r"\boxed{}", ""),
    (r"\boxed 4,500", "4,500"), (r"$\boxed 4 \cdot 10^3$.", r"4 \cdot 10^3"), ("\\boxed 2\nas we saw", "2"), (r"\boxed 4%", "4%"),
    (r"so $\boxed 5$ as claimed", "5"), (r"\[\boxed 2\]", "2"), (r"\(\boxed 24\).", "24"), (r"**\boxed 1176**", "1176"), (r"$\boxed 4$2", "4"),
    (r"\boxed{42} no: \boxed\frac12", r"\frac12"), (r"\boxed{42} no: \boxed .5", ".5"), (r"\boxed{42} no: \boxed$43$", "$43$"), (r"\boxed 4\$", r"4\$"),
    (r"\boxed{5}, in \boxed as asked", ""), (r"\boxed - 43", "- 43"), (r"\boxed{5}. Wait: \boxed −7", "−7"), (r"\boxed{5} or \boxed x", ""), (r"\boxed(5)", ""),
    (r"\boxed 0.333...", "0.333.."), (r"\boxed 5*", "5*"), (r"\boxed 5 $+ 1$", "5 $+ 1$"), (r"\boxed $5$ or $6$", "$5$ or $6$"), (r"$\boxed 5$ $+ 1$", "5"),
    (r"\boxed{1\boxed{5}}", r"1\boxed{5}"), (r"\boxed{ \boxed{5} }", "5"), (r"\boxed{\boxed{5},6}", r"\boxed{5},6"), (r"\boxed{4}, \boxed{\text{not }\boxed{5}}", r"\text{not }\boxed{5}"),
    (r"\boxed{1} and \boxed{2}", "2"), (r"\boxed{1} \boxed 2 \boxed{3", r"2 \boxed{3"), (r"\boxedx{3} \boxed{5}", "5"),
    (r"\boxed 2, so \boxed{3}", "3"), (r"\boxed 4 or 5", "4 or 5"), (r"\boxed 1\frac12", r"1\frac12"),
])
def test_extract_boxed(text, expected):
    assert extract_boxed(text) == expected


@pytest.mark.parametrize("gold, right, wrong", [
    ("56", ["5\u200b6", "$56$", "56$", "\\\\(56\\\\)"], ["5$6", "$5$$6$", "$5$ $6$", r"5\right.6", r"5\left.6", "5①", "5\n6"]),
    ("12500", ["12 500", "12{,}500", r"12\,500"], ["12\n500", "12$ 500"]), ("16/3", ["5⅓", r"5\frac13", "$5$ ⅓"], []), ("17", [], ["5⅓"]),
    ("81/8", ["10⅛"], ["8⅛"]), ("x^n", ["xⁿ"], []), ("xn", [], ["xⁿ", "xₙ"]), ("a_n", ["aₙ"], []), ("2n", [], ["2ⁿ"]), ("e^{x+2}", ["eˣ⁺²"], []),
    ("2", [], ["2⑴", "⑵"]), ("12.5", [], ["⒓5"]), ("cm2", [], ["㎠"]), ("7/2", ["3 1/2", r"$3$ $\frac12$"], ["3\n1/2"]), ("3/4", ["¾"], ["3¼"]),
    ("5", ["$5$ cm", "５"], ["²3"]), ("1234", [], ['1"234', "10～500"]), ("56", [], ['5"6', r"5{6}", r"\text{5\"6}"]), ("30", [], ["5{6}", r"5\mathbf{6}", r"5\textcolor{red}{6}"]),
    ("6", [], ["1.5{4}", r"2\\ (3)"]), ("11/2", [r"5\,\frac12", r"5\ \frac12", r"5\frac{1}{2}", r"5\displaystyle\frac12", "5½"], [r"5{\frac12}"]), ("5/2", [], [r"5\,\frac12", r"5\quad\frac12"]),
    ("7", [r"2\cdot 3\frac12", r"2\cdot3½"], []), (r"\frac{\sqrt2}{3}", [r"\sqrt2\frac13"], []), (r"\frac{2x}{3}", [r"2\frac{x}{3}", r"2\frac x3"], []), ("15/2", [r"5\frac{3}{2}"], []),
    (r"\frac{3\pi}{4}", [r"3\frac{\pi}{4}", r"-3\frac{-\pi}{4}"], []), (r"\frac{2}{9}", [r"2\frac{1}{3}^2", r"2(\frac13)^2"], []), (r"\frac{2\sqrt3}{3}", [r"2\frac{\sqrt3}{3}", r"2\frac{\sqrt{3}}{3}"], []), (r"\frac{\sqrt{21}}{3}", [], [r"\sqrt2\frac13"]), ("50", [], [r"\sqrt2\,500", r"\sqrt2 500"]),
    ("2/23", [], [r"\frac{\sqrt{4}}23"]), (r"\frac{\pi^2}{12}", [r"\frac{\pi^2}{12}"], [r"\frac{\pi^{2}}12"]), ("1/42", [], ["½½"]), ("7/3", [r"2.\overline{3}"], [r"1 2.\overline{3}"]),
    ("5600", [], [r"5\\ 600", r"5\\,600"]), ("2", [], [r"5\\ -3"]), ("2x", [], [r"2\\ x"]), ("5.5", [], [r"5\quad .5", "$5$ $.5$"]), ("3.14", [], [r"\text{3. 14}"]),
    ("64", ["(2^3)^2"], ["2^3^2", "2**3**2", "2^3²"]), ("720", ["(3!)!"], ["3!!"]), (r"\mathbb{C}", ["ℂ"], []), ("C", [], ["ℂ"]), (r"\inf", [], [r"\in f"]),
    (r"\frac12", [r"\\frac{1}{2}", r"\\tfrac12"], []), (r"\{1,2\}", [r"\\{1,2\\}"], []),
])
def test_signs_are_not_dropped_into_the_digits_around_them(gold, right, wrong):
    got = {text: verify_math(f"\\boxed{{{text}}}", gold) for text in right + wrong}
    assert got == {text: text in right for text in right + wrong}


def test_fractions_in_fractions_are_read_once():
    nested = "5\\frac{" * 24 + "1" + "}{x}" * 24    # twice a level would be 2 ** 24 times
    assert [s.status for s in score_batch([f"\\boxed{{{nested}}}"], [{"answer": "x"}], timeout=5)] == ["wrong"]


def test_six_digits_decide():
    """A decimal stands for an exact number from six correct digits on, rounded or cut; never for another decimal."""
    for digits, expected in (("0.66666", 0), ("0.666666", 1), ("0.666667", 1), ("0.666668", 0), ("0.6666665", 0)):
        assert verify_math(rf"\boxed{{{digits}}}", "2/3") == bool(expected), digits
    assert not verify_math(r"\boxed{0.6666667}", "0.666667")


@pytest.mark.parametrize("words", ["or 13", "and 13", "(or 13)", "squared", "factorial", "dozen", "hundred", "trillion", "hundredths",
                                   "plus 1", "over 5", "choose 2", "mod 5", "and a half", "is wrong", "or more", "pi"])
def test_words_that_change_a_number_are_no_unit(words):
    assert not reward.verify_math(f"\\boxed{{12\\text{{ {words}}}}}", "12")


@pytest.mark.parametrize("unit", ["cm", "cm}^2", "cm^2", "square units", "m/s", "times", "months", "half-hours", "meters per second"])
def test_units_are(unit):
    assert reward.verify_math(f"\\boxed{{12\\text{{ {unit}" + ("}" if unit.endswith("^2") and "}" in unit else "}}"), "12")


# --- kinds that people reported -----------------------------------------------------------------------------------------

KINDS = [                                       # (kind, gold answer, right, wrong)
    ("an empty piece is nothing", r"x=\text{Monday}", ["Monday"], [".", r"\text{}", ","]),
    ("an empty piece is nothing", r"5, \text{no solution}", [r"\text{no solution}, 5"], [r"5, \text{}", "5,"]),
    ("what follows is read", "5", [r"5\text{ cm}", "5.", r"5\text{th}", r"5^{\text{th}}"],
     [r"5\text{6}", r"5\text{ cm or 6}", r"5\text{ times}^2", "5 cm!", r"5\text{ cm}\text{ 6}", r"5 \% or 6", "5 \u200b6", r"\cancel{5}6", r"\overline{5}", r"5\phantom{6}",
      r"5\text{ pairs}", r"5\text{ doubled}", r"5\text{ below zero}", "5...", "5,", "5:1", r"5\\6"]),
    ("both words", r"\text{even}", ["Even"], [r"even\text{ odd}", "even or odd", r"\text{not even}", "neve"]),
    ("and, or, commas", r"\mathbb{R}", [r"x<1\text{ or }x>0"], [r"x<1\text{ and }x>0", "x>0, x<1"]),
    ("and, or, commas", "(0,1)", [r"x>0\text{ and }x<1", "0<x, x<1", r"0<x<2\text{ and }x<1"], [r"x>0\text{ or }x<1", "0<x<1, 0<x<0.5"]),
    ("no name", "5", ["|AB|=5", r"\frac{AB}{CD}=5", r"P(X=2)=5", "f'(x)=5", "5=x"],
     [r"x \not= 5", "|x|=5", r"\sqrt{x}=5", "x!=5", "xyz=5", "x/y=5", "x=6=5", "(6)=5", r"\text{not }x=5", r"x\notin\{5\}"]),
    ("chains hold", "4", [r"\sqrt{16}=4", "x=2+2=4", r"2\cdot 2=4"], [r"\sqrt{16}=5", "4=4", "A=B=4", "3+2=4"]),
    ("letters are letters", "I^2R", ["RI^2", r"R\cdot I^2"], ["I^3R", "IR", "R", "-R"]),
    ("letters are letters", "2^T", ["2^{T}"], ["2", "2T", "2^t"]),
    ("letters are letters", "abcd+1", ["1+dcba"], ["abcd*1", "(abcd)^1", "abcd"]),
    ("letters are letters", "2e-1", [r"2\mathrm{e}-1"], ["0.2", "2", "2e+1"]),
    ("letters are letters", "I(0) e^{-t/(RC)}", [r"I(0)e^{-\frac{t}{RC}}"], [r"I(0)e^{t/(RC)}", "0"]),
    ("words are no products", "no", ["No"], ["on"]), ("scales", r"20^\circ\text{C}", ["20^\\circ C", "20"], [r"20^\circ\text{F}"]),
    ("words with mathematics", r"\text{increasing on }(0,1)", [r"\text{Increasing on }(0, 1)"], [r"\text{increasing on }[0,1]"]),
    ("operators of the question", "6", ["3!", r"\binom{4}{2}"],
     [r"\gcd(12,18)", r"20 \bmod 7", r"\max(6,1)", r"\sum_{k=1}^3 k", r"\int_0^6 dx", r"\det\begin{pmatrix}6\end{pmatrix}", r"\lceil 5.5\rceil",
      r"\begin{pmatrix}2\end{pmatrix}\begin{pmatrix}3\end{pmatrix}", r"\lim_{x\to 6}x", r"\begin{vmatrix}6\end{vmatrix}"]),
    ("operators of the question", "2x", ["x+x"], [r"\frac{d}{dx}x^2"]),
    ("off by little", r"\pi", [r"\frac{2\pi}{2}"], [r"\pi+10^{-90}", r"\pi(1+10^{-300})", r"\frac{22}{7}"]),
    ("off by little", "x", ["1x"], ["x+10^{-40}", "x(1+10^{-200})"]),
    ("lists of three digits", "121, 144, 169", ["121,144,169", r"121,\ 144,\ 169"], ["121144169", "121,144"]),
    ("approximations", r"\sqrt2", [r"\sqrt{2}\approx 1.41", r"x=\sqrt2\approx1.414"], [r"1.41\approx 1.4", r"\sqrt2\approx 1.5"]),
    ("part of the answer", r"343\text{ and }512", ["343, 512", r"\{512,343\}"], ["343", "343512"]),
    ("choices", r"\textbf{(C)}\ 12", ["C", "12", "(C)", "C) 12"], ["B", "(B) 12", "(C) 13", "13"]),
    ("indexed solutions", "1,2", ["x_1=2, x_2=1", r"x_{1}=1\text{ and }x_{2}=2"], ["x=1,y=2", "x_1=1,x_2=3"]),
    ("odd roots", "-2", [r"\sqrt[3]{-8}"], [r"\sqrt[3]{8}", r"\sqrt{-8}"]),
    ("fonts and colours", "42", [r"\textcolor{blue}{42}", r"{\bf 42}", r"\color{red}{42}", r"\emph{42}", r"\hspace{1mm}42", "４２", r"{\Large 42}"],
     [r"\textcolor{42}{41}", r"\color{42}4"]),
    ("unicode", "(1,2)", ["（1，2）", "⟨1,2⟩", "(１,２)"], ["［1，2］"]),
    ("units in other words", r"12\text{ cm}^2", [r"12\text{ square centimeters}", r"12\text{ sq. cm}", "12 cm²"], [r"12\text{ cm}", r"12\text{ m}^2"]),
    ("units in other words", r"20\text{ mph}", ["20 mph"], [r"20\text{ km per hour}", r"20\text{ miles}"]),
    ("no solution", r"\emptyset", [r"\text{no solution}", r"\text{There is no solution}"], ["0", r"\text{one solution}"]),
    ("repeating decimals", r"\frac{1}{6}", [r"0.1\overline{6}", r"0.1\dot{6}", r"0.1\bar 6"], [r"0.\overline{16}", "0.16"]),
    ("sets", r"(-\infty,-2)\cup(-2,\infty)", [r"\mathbb{R}\setminus\{-2\}", r"x\ne-2", r"\{x\mid x\neq -2\}"], [r"x\ne 2", r"\mathbb{R}", "x>-2"]),
    ("sets", r"-1\le k\le 1", [r"|k|\le1", r"k^2\le 1", "[-1,1]"], [r"|k|<1", r"k^2\le 2", r"k\le1"]),
    ("families", r"x=\frac{\pi}{4}+k\pi, k\in\mathbb{Z}", [r"\frac{\pi}{4}+\pi k,\ k\in\mathbb Z"], [r"\frac{\pi}{4}+2k\pi, k\in\mathbb{Z}", r"\frac{\pi}{4}"]),
    ("names", "(n,k)=(3,2)", ["k=2, n=3", "(3,2)"], ["(k,n)=(3,2)", "n=2,k=3"]),
    ("an operator as a name", "6", [r"\mathbb{E}[X]=6", r"\mathbb E(X)=6", r"\lfloor 13/2\rfloor=6", "x=⌈11/2⌉=6", r"\lfloor 6\rfloor=6"],
     [r"\lfloor 13/2\rfloor", r"\lfloor 11/2\rfloor=6", r"\lceil 13/2\rceil=6", r"\lfloor 7-10^{-90}\rfloor=7", r"\lfloor 6-10^{-90}\rfloor=6",
      r"\mathbb{E}[X]", r"\mathbb{E}[X]+1=6", r"\mathbb{E}[X)=6", r"\lfloor x\rfloor=6", r"\lfloor 13/2\rceil=6"]),
    ("an operator around another form", r"\lfloor \frac{n}{2} \rfloor", ["⌊n/2⌋", r"\left\lfloor\frac n2\right\rfloor"],
     ["n/2", "⌈n/2⌉", "⌊n/3⌋", "⌊n/2", "⌊n/2⌋+1", r"\lfloor n\rfloor/2"]),
    ("abbreviations of quotients", r"20\text{ mph}", [r"20\text{ miles per hour}", "20 miles/hour", "20"],
     ["20 h", r"20\text{ miles}", r"20\text{ miles per second}", r"20\text{ hours per mile}", r"20\text{ mph}^2"]),
    ("approximations in percent", r"\frac{5}{36}", [r"\frac{5}{36}\approx 13.9\%", r"\frac{5}{36}\approx 13.88\%"],
     [r"\frac{5}{36}\approx 13.7\%", r"\frac{5}{36}\approx 13.9", r"\frac{5}{36}=13.9\%", r"13.9\%", r"\frac{5}{36}\approx 0.139\%"]),
    ("matrices times numbers", r"\frac{1}{2}\begin{pmatrix}1\\2\end{pmatrix}",
     [r"\begin{pmatrix}\frac12\\1\end{pmatrix}", r"\frac14\cdot\begin{bmatrix}2\\4\end{bmatrix}"],
     [r"\begin{pmatrix}\frac12\\2\end{pmatrix}", r"\begin{pmatrix}\frac12&1\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", r"\frac12\begin{vmatrix}1\\2\end{vmatrix}", "1"]),
    ("matrices times numbers", r"\begin{pmatrix}2&4\\6&8\end{pmatrix}", [r"2\begin{pmatrix}1&2\\3&4\end{pmatrix}"],
     [r"2\begin{pmatrix}1&2\\3&8\end{pmatrix}", r"\begin{pmatrix}2&0\\0&2\end{pmatrix}\begin{pmatrix}1&2\\3&4\end{pmatrix}"]),
    ("another letter", "f(x)=x^2+1", ["f(t)=t^2+1"], ["g(t)=t^2+1", "f(t)=x^2+1", "f(x)=t^2+1", "f(t)=t^2+x", "f(2)=x^2+1", "f(t)=t^2-1"]),
    ("another letter", "f(x)=ax", ["f(t)=at"], ["f(a)=xa", "f(a)=a^2", "f(b)=bc"]), ("another letter", "P(A)=0.5", ["0.5"], ["P(B)=0.5"]),
    ("two dots", r"\frac{4}{33}", [r"0.\dot{1}\dot{2}", r"0.\dot1\dot2"], [r"0.\dot{1}{\dot{2}}", r"0.\dot{1}\dot{2}3", r"0.\dot{1}0\dot{2}", r"0.1\dot{2}"]),
    ("signs as indices", r"[0,\infty)", [r"\mathbb{R}_{\ge 0}", r"\mathbb R_{\geq0}", "ℝ_{≥0}"],
     [r"\mathbb{R}_{> 0}", r"\mathbb{R}_{\ge 0.5}", r"\mathbb{Z}_{\ge 0}", r"\mathbb{R}_{\le 0}", r"\mathbb{R}_{\ge 0}^2"]),
    ("lists of complex numbers", "1+i,1-i", ["1-i,1+i"], ["1+i,2-i"]),
    ("congruences", r"n\equiv 3\pmod{7}", [r"n \equiv 3 \pmod 7"], [r"n\equiv 3\pmod{8}", "3"]),
]


REFUSED_BY_CHOICE = [                           # right, and rare: reading them would take more lines than they are worth
    ("an operator as a name", "6", [r"\gcd(12,18)=6"]),
    ("an operator as a name", r"45^\circ", [r"\angle A=45^\circ"]),
    ("e with one digit may be Euler's", "0.0000002", ["2e-7"]),
    ("millions", r"5\text{ million}", ["5000000", "5,000,000", r"5\times10^6"]),
    ("a comma that means or", r"(-\infty,1)\cup(2,\infty)", ["x > 2, x < 1"]),
]


@pytest.mark.parametrize("kind, gold, right", REFUSED_BY_CHOICE)
def test_refused_by_choice(kind, gold, right):
    assert [r for r in right if same_answer(gold, r)] == [] and same_answer(gold, gold)


@pytest.mark.parametrize("kind, gold, right, wrong", KINDS)
def test_kinds(kind, gold, right, wrong):
    assert [r for r in right if not same_answer(gold, r)] == [] and [r for r in wrong if same_answer(gold, r)] == []


def test_a_long_answer_is_right_only_if_it_is_the_gold_answer():
    gold = "+".join(f"{k}x^{{{k}}}" for k in range(60))
    assert verify_math(rf"\boxed{{{gold}}}", gold) and verify_math(rf"\boxed{{{gold.replace('+', ' + ')}}}", gold)
    assert not verify_math(rf"\boxed{{{gold}+1}}", gold) and not verify_math(r"\boxed{" + "9" * 400 + "}", "9")


@pytest.mark.parametrize("text", ["x^{-1}" * 40, "(" * 140 + "x" + ")" * 140, "-" * 290, "9^{" * 60 + "9" + "}" * 60, r"\sqrt{" * 40 + "2" + "}" * 40,
                                  "x^{x^{x^{x^{x^x}}}}", "(((9^9)^9)^9)^{9^9}", r"\binom{10^{9}}{10^{8}}", "e^{e^{e^{e^{e}}}}", r"\frac{1}{" * 30 + "2" + "}" * 30,
                                  "x" * 290, "1+" * 140 + "1", r"\{" * 100 + r"\}" * 100, "|" * 200, "{,}" * 90, "0." + "3" * 290, r"\text{" * 60 + "}" * 60])
def test_no_pattern_takes_long(text):
    start = time.process_time()
    assert not same_answer("x^2+5", text)
    assert time.process_time() - start < 2


# --- one change of one character --------------------------------------------------------------------------------------

GOLDS = {
    "number": ["7", "-12", "144", "3.75", "0.0625", "10007", "2^{10}", r"\frac{3}{8}", r"-\frac{17}{23}", r"3\frac{1}{4}", r"6.02\times 10^{23}"],
    "expression": [r"2\sqrt{3}", r"\frac{\sqrt{6}-\sqrt{2}}{4}", r"3\pi", r"e^{2}-5", r"x^2+3x-7", "2x(x-3)", r"\frac{a+b}{c-d}", r"\sin x+\cos y",
                   r"\ln 5", r"\log_{2} 9", r"5+2i", r"\sqrt[3]{7}", "n!+4", r"\binom{n}{3}", r"a_1+a_2", r"2^{n+1}-3", r"|x-4|", r"\alpha+2\beta"],
    "relation": ["y=3x-2", "x^2+y^2=9", "2x+3y-z=4", "x>3", r"x\ge 5", r"-1<x\le 6", "x=8", "f(x)=x^3-2", r"y<2x+1", r"\sqrt{16}+5=9"],
    "interval": ["[2,5)", "(-3,4]", "[1,7]", r"(-\infty,6]", r"(1,2)\cup(5,8)", r"[3,\infty)", r"(-4,\frac{1}{2}]"],
    "set": [r"\{1,4,9\}", r"\{-2,7\}", r"\{a,b\}", r"\{3,\sqrt{5}\}"], "list": ["2,5", "3,-4,8", r"\sqrt{2},5", "x=3,x=7", r"12\text{ or }15"],
    "tuple": ["(3,-4)", "(1,2,6)", r"(\frac{1}{2},9)", "(a,b+1)", "(x,y)=(3,8)", "(1,5),(2,7)"], "ratio": ["5:3", "2:7:9"],
    "matrix": [r"\begin{pmatrix}2&5\\1&3\end{pmatrix}", r"\begin{pmatrix}4\\-7\end{pmatrix}", r"\begin{pmatrix}a&b\\c&d\end{pmatrix}"],
    "choice": ["B", "D", "A, C"], "words": [r"\text{Tuesday}", r"\text{increasing}", r"\text{Alice and Bob}", r"\text{no solution}"],
    "unit": [r"12\text{ cm}", r"25\text{ m/s}", r"9\text{ cm}^2", r"45^\circ", r"3.5\text{ hours}", r"\$12.50", r"35\%", r"20^\circ\text{C}"],
}
KEEP = [                                        # functions of an answer that keep its meaning
    lambda s: f" {s} ", lambda s: f"${s}$", lambda s: rf"\({s}\)", lambda s: s + ".", lambda s: s + r"\,", lambda s: rf"\displaystyle {s}",
    lambda s: rf"\boldsymbol{{{s}}}", lambda s: rf"\textcolor{{red}}{{{s}}}", lambda s: rf"\text{{Answer: }}{s}", lambda s: s.replace(",", ", "),
    lambda s: s.replace(",", r",\ "), lambda s: re.sub(r"(?<=[\w}])([-+=<])(?=[\w\\])", r" \1 ", s), lambda s: s.replace(r"\frac", r"\dfrac"),
    lambda s: s.replace(r"\frac", r"\tfrac"), lambda s: re.sub(r"\\frac\{(\w)\}\{(\w)\}", r"\\frac\1\2", s), lambda s: s.replace("-", "−"),
    lambda s: s.replace("(", r"\left(").replace(")", r"\right)") if s.count("(") == s.count(")") else s, lambda s: s.replace(r"\pi", "π"),
    lambda s: re.sub(r"\^\{(\d)\}", r"^\1", s), lambda s: re.sub(r"\^(\d)", r"^{\1}", s), lambda s: s.replace("pmatrix", "bmatrix"),
    lambda s: s.replace(r"\text{", r"\mbox{"), lambda s: s.replace(r"\times", r"\cdot"),
    lambda s: s.replace(r"\infty", "∞").replace(r"\cup", "∪"), lambda s: s.replace(r"\ge", r"\geq").replace(r"\le ", r"\leq "),
    lambda s: re.sub(r"(?<![a-zA-Z{\\])[0-9]", lambda m: chr(ord("０") + int(m[0])), s), lambda s: s.replace(r"\{", r"\left\{").replace(r"\}", r"\right\}"),
    lambda s: re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", s), lambda s: s.replace("^\\circ", "^{\\circ}"), lambda s: s.replace(r"\text{ ", r"\;\text{"),
    lambda s: re.sub(r"(?<=[\w}])\+(?=\w)", "{}+", s) and s, lambda s: s.replace(r"\alpha", "α").replace(r"\beta", "β"),
]


def kept(kind, gold, rng):
    yield from (change(gold) for change in KEEP)
    inner = [change for change in KEEP if not change(gold).endswith(".") and "Answer" not in change(gold)]
    yield from (a(b(gold)) for a in rng.sample(KEEP, 8) for b in rng.sample(inner, 8))
    if kind in ("set", "list") and "or" not in gold:
        bare = gold.removeprefix(r"\{").removesuffix(r"\}").split(",")
        for _ in range(3):
            rng.shuffle(bare)
            yield from (",".join(bare), r"\{" + ", ".join(bare) + r"\}", r"\text{ and }".join(bare), " or ".join(bare) if kind == "set" else gold)


def broken(gold):
    """All answers that differ from the gold answer in one meaningful character."""
    hidden = re.compile(r"\\[a-zA-Z]+|(?<=begin)\{\w+\}|(?<=end)\{\w+\}|(?<=text)\{[^{}]*\}").finditer(gold)
    inert = {i for m in hidden for i in range(*m.span())}
    swaps = {"+": "-", "-": "+", "<": ">", ">": "<", "(": "[", "[": "(", ")": "]", "]": ")", ",": ".+", ":": ",-", "=": ">", "!": "'", "&": ","}
    for i, c in enumerate(gold):
        if i in inert:
            continue
        new = [str((int(c) + k) % 10) for k in (1, 4, 7)] + [c + "3"] if c.isdigit() else [x for x in "kqw" if x != c] + [c.swapcase()] if c.isalpha() else swaps.get(c, "")
        yield from (gold[:i] + x + gold[i + 1:] for x in new)
        if c.isdigit() and not gold[:i].endswith("\\frac{"):
            yield gold[:i] + "-" * (gold[i - 1:i] not in ("-", ".") and not gold[i - 1:i].isdigit()) + gold[i:] + "0" * (gold[i - 1:i] == "-")
    if gold[0] not in "-(["and "=" not in gold and "<" not in gold and ">" not in gold:
        yield "-" + gold
    for old, new in (("cm", "mm"), ("m/s", "km/s"), ("m/s", "m/h"), ("hours", "days"), ("circ", "pi"), ("text{C}", "text{F}"), (r"\$", "€"), ("Tues", "Thurs"),
                     ("increas", "decreas"), ("no ", "one "), ("Bob", "Rob"), (r"\cup", r"\cap"), (r"\ge", r"\le"), (r"\le ", r"\ge "), (r"\sin", r"\cos"),
                     (r"\ln", r"\sin"), (r"\sqrt", ""), (r"\pi", r"\rho"), (r"\infty", "99"), (r"\{", "("), ("pmatrix", "vmatrix"), (r"\or", r"\and"), ("^", ""), ("_", "^")):
        if old in gold:
            yield gold.replace(old, new, 1)


def test_metamorphic(capsys):
    rng, right, wrong = random.Random(0), [], []
    for kind, golds in GOLDS.items():
        for gold in golds:
            right += [(gold, pred, same_answer(gold, pred)) for pred in dict.fromkeys(kept(kind, gold, rng))]
            wrong += [(gold, pred, same_answer(gold, pred)) for pred in dict.fromkeys(broken(gold)) if pred != gold]
    refused, paid = [(g, p) for g, p, v in right if not v], [(g, p) for g, p, v in wrong if v]
    with capsys.disabled():
        print(f"\n{len(right)} changes that keep the meaning: {len(refused)} refused; {len(wrong)} changes of one character: {len(paid)} rewarded")
    assert len(right) > 1200 and len(wrong) > 1200
    assert len(refused) <= 0.01 * len(right), refused
    assert len(paid) <= 0.002 * len(wrong), paid


CONNECTIVES_AND_CASE = [(r"P \land Q", r"P \lor Q"), (r"P \lor Q", "P,Q"), (r"P\land(Q\lor R)", r"P\lor(Q\land R)"),
                        (r"x=1\text{ and }y=2", r"x=1\text{ or }y=2"), ("A,C", r"\text{A or C}"), (r"\text{I, II}", r"\text{I or II}"),
                        (r"\text{red and blue}", r"\text{red or blue}"), ("3:00 PM", "3:00 AM"), (r"8:00\text{ am}", r"8:00\text{ pm}"),
                        (r"\text{Aa}", r"\text{aa}"), (r"5\text{ MHz}", r"5\text{ mHz}"), ("5", "5\0"), ("5", "5\0\0 6")]
SAME_IN_OTHER_WORDS = [(r"P \land Q", r"P \wedge Q"), ("P \\land Q", "P ∧ Q"), (r"\neg P", r"\lnot P"), ("1,2", r"x=1\text{ or }x=2"),
                       (r"2a,-a", r"x=2a\text{ or }x=-a"), (r"(1,2),(3,4)", r"(1,2)\text{ or }(3,4)"), ("A,C", r"\text{A and C}"),
                       (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\[4pt]2\end{pmatrix}"), (r"\text{Yes}", "yes")]


@pytest.mark.parametrize("gold, answer", CONNECTIVES_AND_CASE)
def test_and_or_halves_of_the_day_and_case_carry_meaning(gold, answer):
    assert not same_answer(gold, answer) and not same_answer(answer, gold)


@pytest.mark.parametrize("gold, answer", SAME_IN_OTHER_WORDS)
def test_words_that_mean_the_same(gold, answer):
    assert same_answer(gold, answer)
