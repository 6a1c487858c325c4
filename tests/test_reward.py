"""Tests of reward.py: every verdict here follows from mathematics, from the task, or from what a cheat must not get."""

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import jinja2
import pytest

import reward
from test_sandbox import CALLS, PYTEST, STDIO
from reward import (Score, extract_boxed, format_prompt, load_problems, score_batch, start_workers,
                    verify_countdown, verify_math)

ROOT = pathlib.Path(reward.__file__).parent
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
    ("degrees", r"45^\circ", ["45", r"45^{\circ}", "45°", "45 degrees", r"45\degree", r"45\text{ degrees}", r"\angle A=45^\circ"]),
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
    ("tiny", "0.0000002", [r"2\times10^{-7}", "2e-7", r"2 \cdot 10^{-7}", r"\frac{2}{10^7}", r"0.2\times 10^{-6}"]),
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
    ("big", r"5\text{ million}", ["5000000", "5,000,000", r"5\times10^6", "5 million"]),
    ("decimal", r"\frac{1}{3}", ["0.33333333333333331", r"0.\overline{3}", "0.3333333333"]),
    ("decimal", r"\frac{100}{3}", ["33.333333333333336", r"33.\overline{3}", r"33\frac{1}{3}"]),
    ("decimal", r"0.08\overline{3}", [r"\frac{1}{12}", "0.0833333333333333"]),
    ("tuple", "(1,2)", ["x=1, y=2", "y=2, x=1", "a=1,b=2"]),
    ("tuple", r"(30^\circ,\frac{\pi}{2})", [r"(30,\frac12\pi)"]),
    ("interval", "[2,5)", [r"\{x\mid 2\le x<5\}", r"x \in [2,5)", "5>x>=2", r"2\leqslant x\lt 5"]),
    ("union", r"(-\infty,1)\cup(2,\infty)", [r"x<1\text{ or }x>2", "x > 2, x < 1"]),
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
    (r"\fbox{7}", "7"), (r"\boxed{\boxed{3}}", "3"), (r"\boxed{5", None), (r"\boxed", None), ("", None),
    (r"\boxed {4}", "4"), (r"\boxed -3.", "-3"), (r"put it in \boxed please", None), (r"<think>\boxed{1}", None),
    (r"<think>\boxed{1}</think>\boxed{2}", "2"), (r"\boxed{1}</think>", None), (r"\boxed{}", ""),
])
def test_extract_boxed(text, expected):
    assert extract_boxed(text) == expected


def test_six_digits_decide():
    """A decimal stands for an exact number from six correct digits on, rounded or cut; never for another decimal."""
    for digits, expected in (("0.66666", 0), ("0.666666", 1), ("0.666667", 1), ("0.666668", 0), ("0.6666665", 0)):
        assert verify_math(rf"\boxed{{{digits}}}", "2/3") == bool(expected), digits
    assert not verify_math(r"\boxed{0.6666667}", "0.666667")


# --- countdown -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("response, expected", [
    ("7*9+1", True), ("(7+1)*8", False), ("9*7+1=64", True), ("64", False), (r"so \boxed{9\times 7+1}", True), ("7*9", False),
    ("7*9+1+1", False), ("7*9*1", False), ("try 7+9\n9*7+1", True), ("9*7+1\n7+9", False), ("9*7+1\n\n", True),
    ("<think>9*7+1</think>7+1", False), ("<think>9*7+1", False), ("1--7*9", True), ("7**9", False), ("9//7+1", False), ("", False),
    ("(9*7+1", False), ("9*7+1)", False), ("__import__('os')", False), ("9*(7", False), ("9*7+01", False), ("9 7*1", False),
    ("(" * 140 + "9*7+1" + ")" * 140, True), ("(" * 5000 + "9*7+1" + ")" * 5000, False), ("-" * 290 + "9*7+1", True), ("-" * 291 + "9*7+1", False),
    ("9*7+1/0", False), ("9*7+1.0", False), ("9*7+1e0", False), ("64=9*7+1", False), ("٩*7+1", False), ("9*7+True", False),
])
def test_countdown(response, expected):
    problem = {"problem": "", "numbers": [9, 7, 1], "target": 64, "task": "countdown"}
    assert verify_countdown(response, problem) is expected
    assert score_batch([response], [problem])[0].reward == float(expected)


def test_countdown_is_exact_and_counts_duplicates():
    thirds = {"numbers": [8, 3, 8, 3], "target": 24, "task": "countdown"}
    assert verify_countdown("8/(3-8/3)", thirds)                                   # 8 / (1/3); 23.999... in floats
    assert not verify_countdown("8/(3-8/3)", {**thirds, "numbers": [8, 3, 3]})
    assert verify_countdown("24", {**thirds, "numbers": [24, 1]})                  # the target is one of the numbers
    assert not verify_countdown("24", thirds)


# --- pool ------------------------------------------------------------------------------------------------------------

HANG = r"\boxed{" + "+".join(rf"\int_0^1 \sin(x^{{{k}}} e^{{x}}) dx" for k in range(2, 8)) + "}"


def test_order_statuses_and_truncation():
    responses = [r"\boxed{1}", "none", r"\boxed{\sqrt{4}}", r"\boxed{3}", "1+1", "```python\nprint(2)\n```"]
    problems = [{"answer": "1"}, {"answer": "1"}, {"answer": "2"}, {"answer": "2"}, {"task": "countdown", "numbers": [1, 1], "target": 2},
                {"task": "code", "tests": {"inputs": [""], "outputs": ["2"]}}]
    statuses = [s.status for s in score_batch(responses, problems, timeout=SECONDS)]
    assert statuses == ["right", "no_answer", "right", "wrong", "right", "right"]
    cut = score_batch(responses[:4], problems[:4], truncated=[True] * 4, timeout=SECONDS)
    assert [s.status for s in cut] == ["right", "truncated", "right", "truncated"]
    assert cut[0] == Score(1.0, "right", "1") and cut[3] == Score(0.0, "truncated", "3")
    with pytest.raises(ValueError):
        score_batch(["a"], [])


def test_a_hung_a_killed_and_a_failing_judgement_cost_only_themselves():
    start_workers(2)
    before = {w.process.pid for w in reward._started}
    good = r"\boxed{\sqrt{16}}"
    scores = score_batch([good, HANG, good, good], [{"answer": "4"}] * 4, timeout=2)
    assert scores[1].status in ("timeout", "wrong") and [s.reward for s in scores] == [1, 0, 1, 1]
    for worker in reward._started:
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
    roots = range(30, 42)
    responses, problems = [rf"\boxed{{\sqrt{{{k * k}}}}}" for k in roots], [{"answer": str(k)} for k in roots]
    assert [s.reward for s in score_batch(responses, problems, timeout=SECONDS)] == [1.0] * 12
    assert not before & {w.process.pid for w in reward._started}
    assert score_batch(["```python\n1\n```"], [{"task": "code", "tests": {"inputs": [""]}}])[0].status == "error"


def test_the_workers_clock_stops_one_long_big_integer_operation():
    """Such an operation never returns to the interpreter, so that a Python signal handler would wait for ever."""
    worker = reward.Worker()
    start = time.monotonic()
    answer = r"\binom{9999999999}{4999999999}"
    assert worker.judge({"answer": "7", "response": answer}, 2) in ("timeout", "error", "wrong")
    assert time.monotonic() - start < 60
    assert worker.judge({"answer": "7", "response": r"\sqrt{49}"}, SECONDS) == "right"


def test_scores_from_threads():
    results = {}
    def score(k):
        results[k] = score_batch([rf"\boxed{{\sqrt{{{k * k}}}}}"] * 5, [{"answer": str(k)}] * 5, timeout=SECONDS)
    threads = [threading.Thread(target=score, args=(k,)) for k in range(101, 105)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(s.status == "right" for k in range(101, 105) for s in results[k])


@pytest.mark.parametrize("launcher", [[], ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]], ids=["python", "torchrun"])
def test_no_worker_outlives_its_parent(tmp_path, launcher):
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(f"""
        import os, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        import reward
        assert reward.score_batch([r"\\boxed{{\\sqrt{{4}}}}"], [{{"answer": "2"}}], timeout=60)[0].status == "right"
        print("ready", os.getpid(), *[w.process.pid for w in reward._started], flush=True)
        time.sleep(600)"""))
    parent = subprocess.Popen([sys.executable, *launcher, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    ranks = [list(map(int, parent.stdout.readline().split()[1:])) for _ in range(2 if launcher else 1)]
    for rank in ranks:
        os.kill(rank[0], signal.SIGKILL)
    workers = {pid for rank in ranks for pid in rank[1:]}
    assert len(workers) == 2 * len(ranks)
    for _ in range(600):
        workers = {pid for pid in workers if os.path.exists(f"/proc/{pid}") and "Z" not in open(f"/proc/{pid}/stat").read().split()[2]}
        if not workers:
            break
        time.sleep(0.1)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    assert not workers


def test_a_worker_that_misjudges_is_refused(monkeypatch):
    monkeypatch.setattr(reward.Worker, "judge", lambda self, item, timeout: "wrong")
    monkeypatch.setattr(reward, "_started", [])
    with pytest.raises(RuntimeError, match="math-verify"):
        start_workers(1)


def test_importing_is_light():
    code = "import sys, reward; print([m for m in ('torch', 'sympy', 'math_verify', 'datasets', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "[]\n"


# --- prompts and data ------------------------------------------------------------------------------------------------

class Tokenizer:
    """One id per character; 0 is the BOS that a tokenizer adds unless told not to."""
    chat_template = None
    def __call__(self, text, add_special_tokens=True):
        return collections.namedtuple("Encoding", "input_ids")([0] * add_special_tokens + [ord(c) for c in text])
    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return "\0" + "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


def test_format_prompt():
    plain, chat = Tokenizer(), Tokenizer()
    chat.chat_template = "yes"
    text = lambda ids: "".join(map(chr, ids))
    assert text(format_prompt({"problem": "7,1,9:72>", "task": "countdown"}, plain)) == "\x007,1,9:72>"
    math = text(format_prompt({"problem": "What is 1+1?"}, plain))
    assert math.startswith("\0What is 1+1?\n") and "\\boxed{}" in math
    math = text(format_prompt({"problem": "What is 1+1?"}, chat))
    assert math.count("\0") == 1 and math.endswith("<user>What is 1+1?<assistant>") and "<system>" in math

    def no_system_role(messages, **_):
        if messages[0]["role"] == "system":
            raise jinja2.TemplateError("System role not supported")
        return Tokenizer().apply_chat_template(messages, **_)
    chat.apply_chat_template = no_system_role
    math = text(format_prompt({"problem": "What is 1+1?"}, chat))
    assert math.startswith("\0<user>") and "\\boxed{}" in math and math.endswith("\n\nWhat is 1+1?<assistant>")


def write(tmp_path, *rows):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(path)


def test_unreadable_gold_answers_are_dropped_and_named(tmp_path, capsys):
    golds = ["5", "", "  ", "\\frac{", "$$", "\\text{}", "\\frac{1}{}", "?", "1+", "Sunday", "\\frac{1}{2}", 27.0, "(1,2]"]
    problems = load_problems(write(tmp_path, *[{"problem": f"p{i}", "answer": g, "source": "s"} for i, g in enumerate(golds)]))
    assert [p["answer"] for p in problems] == ["5", "Sunday", "\\frac{1}{2}", "27.0", "(1,2]"]
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and "8 rows" in warning and "[2, 3, 4, 5, 6, 7, 8, 9]" in warning
    assert all(p["task"] == "math" for p in problems)
    for gold in golds[1:9]:
        assert not verify_math(rf"\boxed{{{gold}}}", gold), gold


@pytest.mark.parametrize("row, words", [
    ({"problem": "p"}, ["row 2", "answer"]), ({"answer": "5"}, ["row 2", "problem"]), ("{", ["row 2"]), ("[1]", ["row 2"]),
    ({"problem": "p", "answer": "5", "task": "mth"}, ["row 2", "mth", "math"]),
    ({"problem": "p", "numbers": [1], "task": "countdown"}, ["row 2", "target"]),
    ({"problem": "p", "task": "code"}, ["row 2", "tests"]), ({"problem": "p", "answer": None}, ["row 2", "answer"]),
])
def test_bad_rows_are_errors_of_one_clear_line(tmp_path, row, words):
    path = write(tmp_path, {"problem": "p", "answer": "5"}, row)
    with pytest.raises(ValueError) as error:
        load_problems(path)
    assert path in str(error.value) and "\n" not in str(error.value) and all(w in str(error.value) for w in words)


def test_code_rows_without_tests_are_dropped(tmp_path, capsys):
    tests = (STDIO, "", [], {"inputs": [], "outputs": []}, json.dumps(CALLS), PYTEST, "{broken")
    rows = [{"problem": f"p{i}", "task": "code", "tests": t} for i, t in enumerate(tests)]
    assert [p["tests"] for p in load_problems(write(tmp_path, *rows))] == [STDIO, json.dumps(CALLS), PYTEST]
    assert "4 rows" in capsys.readouterr().err


DAPO = ("Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
        "(without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on its own line after "
        "\"Answer:\".")


@pytest.mark.parametrize("row, expected", [             # columns as the datasets have them on the hub
    ({"prompt": [{"role": "user", "content": DAPO.format("What is\n\n$1+1$?")}], "ability": "MATH", "data_source": "math_dapo",
      "reward_model": {"ground_truth": "2", "style": "rule"}, "extra_info": {"index": "a"}}, {"problem": "What is\n\n$1+1$?", "answer": "2"}),
    ({"prompt": "What?", "solution": "34", "reward_model": {"ground_truth": "34"}, "ability": "MATH"}, {"problem": "What?", "answer": "34"}),
    ({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "ability": "math",
      "reward_model": {"style": "rule", "ground_truth": "\\frac{1}{2}"}}, {"problem": "u", "answer": "\\frac{1}{2}"}),
    ({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "ability": "code",
      "reward_model": {"style": "rule", "ground_truth": json.dumps(STDIO)}}, {"problem": "u", "tests": json.dumps(STDIO), "task": "code"}),
    ({"question": "Add.", "solution": "def add(a, b): return a + b", "test": PYTEST, "style": "instruct"},
     {"problem": "Add.", "tests": PYTEST, "task": "code"}),
    ({"ID": "2024-I-1", "Problem": "P", "Solution": "So \\boxed{7}.", "Answer": 33}, {"problem": "P", "answer": "33"}),
    ({"problem": "P", "solution": "\\boxed{204}"}, {"problem": "P", "answer": "204"}),
    ({"question": "Q", "answer": 27.0}, {"problem": "Q", "answer": "27.0"}),
    ({"question": "Q", "final_answer": ["2"], "is_multiple_answer": False}, {"problem": "Q", "answer": "2"}),
    ({"question": "Q", "final_answer": ["2", "3"], "is_multiple_answer": True}, {"problem": "Q", "answer": "2, 3"}),
    ({"problem": "P", "answer": ["$11$"]}, {"problem": "P", "answer": "$11$"}),
    ({"problem": "P", "solution": "It is four.", "answer": "4", "domain": ["Algebra"]}, {"problem": "P", "answer": "4"}),
])
def test_columns_of_public_datasets(tmp_path, row, expected):
    problem, = load_problems(write(tmp_path, row))
    assert {name: problem[name] for name in expected} == expected and problem["task"] == expected.get("task", "math")


def test_repeated_prompts_are_dropped_and_counted(tmp_path, capsys):
    rows = [{"prompt": [{"role": "user", "content": DAPO.format(f"p{i % 3}")}], "reward_model": {"ground_truth": str(i % 3)}} for i in range(300)]
    assert [p["problem"] for p in load_problems(write(tmp_path, *rows))] == ["p0", "p1", "p2"]
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and "297 rows" in warning


def test_hub_datasets_have_the_same_columns_as_files(monkeypatch, tmp_path):
    """A table saved by datasets has the types of the hub's: chats as lists of dicts, None where a row lacks a column."""
    datasets = pytest.importorskip("datasets")
    rows = [{"Problem": "P", "Answer": 5, "final_answer": None}, {"Problem": "Q", "Answer": None, "final_answer": ["6"]}]
    asked = []
    def load_dataset(name, *config, split):
        asked.append((name, *config, split))
        return datasets.Dataset.from_list(rows)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for path in ("owner/set", "owner/set:test", "owner/set:en:train"):
        assert [(p["problem"], p["answer"]) for p in load_problems(path)] == [("P", "5"), ("Q", "6")]
    assert asked == [("owner/set", "train"), ("owner/set", "test"), ("owner/set", "en", "train")]


@pytest.mark.parametrize("row, said", [
    ({"problem": [], "answer": "5"}, "row 1"), ({"problem": {"a": 1}, "answer": "5"}, "'problem'"),
    ({"problem": 5, "answer": "5"}, "'problem'"), ({"problem": "x", "numbers": 5, "target": 3, "task": "countdown"}, "'numbers'"),
    ({"problem": "x", "numbers": ["1"], "target": 3, "task": "countdown"}, "'numbers'"),
    ({"problem": "x", "numbers": [1], "target": "3", "task": "countdown"}, "'target'")])
def test_values_of_the_wrong_type_are_named(row, said, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=said):
        reward.load_problems(str(path))


@pytest.mark.parametrize("tests", [5, {"inputs": ["1"]}, {"inputs": ["1", "2"], "outputs": ["1"]}, "", " "])
def test_tests_that_cannot_be_run_are_no_tests(tests):
    assert reward.read_tests(tests) is None


@pytest.mark.parametrize("words", ["or 13", "and 13", "(or 13)", "squared", "factorial", "dozen", "hundred", "trillion", "hundredths",
                                   "plus 1", "over 5", "choose 2", "mod 5", "and a half", "is wrong", "or more", "pi"])
def test_words_that_change_a_number_are_no_unit(words):
    assert not reward.verify_math(f"\\boxed{{12\\text{{ {words}}}}}", "12")


@pytest.mark.parametrize("unit", ["cm", "cm}^2", "cm^2", "square units", "m/s", "times", "months", "half-hours", "meters per second"])
def test_units_are(unit):
    assert reward.verify_math(f"\\boxed{{12\\text{{ {unit}" + ("}" if unit.endswith("^2") and "}" in unit else "}}"), "12")
