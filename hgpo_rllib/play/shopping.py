"""A person shops for a WebShop goal in the terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from env_wrappers.webshop import pages
from env_wrappers.webshop.pages import Kind, Role
from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop
from hgpo_rllib.play.console import QUIT, ask, plain
from hgpo_rllib.play.scores import HEADINGS, score_rows

_STYLES = {Role.TEXT: "", Role.BUTTON: "cyan", Role.LINK: "cyan", Role.OPTION: "cyan"}


def shop_for_goal(shop: Shop, goal: int, max_steps: int, console: Console) -> bool:
    """Shop until something is bought, the steps are used up or the player quits.

    Args:
        shop: the store.
        goal: index of the goal in the shop's list.
        max_steps: steps that may be taken; searches and clicks that do nothing are steps too.
        console: where pages are shown.

    Returns:
        Whether the purchase has the full score.
    """
    session = Session(shop)
    session.start(goal)
    console.print(
        Text(f"A number clicks, other words are searched for, {QUIT!r} ends the game.", "dim")
    )
    steps, bought = 0, False
    while not bought and steps < max_steps:
        _show_page(session, console)
        action = _choose(session, max_steps - steps, console)
        if action is None:
            break
        _, bought = session.step(action)
        steps += 1
        if session.ignored:
            console.print(Text(f"The store does not understand {plain(action)}.", "yellow"))
    _show_end(shop, session, steps, console)
    return session.score is not None and session.score.reward == 1


def _show_page(session: Session, console: Console) -> None:
    console.print()
    numbers = {name: number for number, name in enumerate(_clickable(session), start=1)}
    for role, words in pages.nodes(session.page):
        line = Text(plain(words.strip()), _STYLES[role])
        # Options are clicked as they are written, all else in small letters.
        number = numbers.get(words if role is Role.OPTION else words.lower())
        if role is not Role.TEXT and number is not None:
            line = Text.assemble((f"{number:>3} ", "bold"), line)
            if _is_clicked(session, words):
                line.append("  (chosen)", "green")
        console.print(line)


def _is_clicked(session: Session, words: str) -> bool:
    page = session.page
    return words in page.visited or (page.kind is Kind.ITEM and words in page.chosen.values())


def _clickable(session: Session) -> list[str]:
    """What clicks do something: the search button does nothing by itself."""
    return [name for name in session.clickables if name != pages.SEARCH.lower()]


def _choose(session: Session, left: int, console: Console) -> str | None:
    """Ask until there is an action, which may be written as the agent does; None: to leave."""
    names = _clickable(session)
    while True:
        answer = ask(console, f"{left} {'step' if left == 1 else 'steps'} left > ")
        if answer == QUIT:
            return None
        if answer.startswith(("search[", "click[")):
            return answer
        if not answer.isdecimal():
            if answer:
                return f"search[{answer}]"
        elif 1 <= int(answer) <= len(names):
            return f"click[{names[int(answer) - 1]}]"
        elif names:
            console.print(Text(f"There is nothing to click at {answer}: 1 to {len(names)}."))
        else:
            console.print(Text("There is nothing to click yet: search for something."))


def _show_end(shop: Shop, session: Session, steps: int, console: Console) -> None:
    count = f"{steps} {'step' if steps == 1 else 'steps'}"
    if session.page.kind is not Kind.DONE or session.score is None:
        console.print(Text(f"Lost: nothing is bought after {count}.", "bold red"))
        return
    product = session.page.item
    table = Table(*HEADINGS, title=Text(f"Bought: {plain(product.title)}"), title_justify="left")
    for row in score_rows(session.score, session.goal, shop.goals.price(product.index)):
        table.add_row(*(Text(plain(cell)) for cell in row))
    console.print()
    console.print(table)
    won = session.score.reward == 1
    console.print(
        Text(
            f"{'Won' if won else 'Lost: not all that was asked for'}, in {count}.",
            "bold green" if won else "bold red",
        )
    )
