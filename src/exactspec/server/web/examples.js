/** What an empty page offers. Most of each answer can be copied from the question: that is what drafting is good at. */

const CODE = `def read_rows(path, sep=","):
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            rows.append([cell.strip() for cell in line.split(sep)])
    return rows


def column(rows, index):
    return [row[index] for row in rows if len(row) > index]`;

const NOTES = `Mon 3 March: Ana ordered 4 chairs, delivery in week 12.
Tue 4 March: Bo ordered 1 desk, delivery in week 11.
Thu 6 March: Chen ordered 2 lamps, delivery in week 11.
Fri 7 March: Dee ordered 6 chairs, delivery in week 13.`;

export const EXAMPLES = [
  { title: "Change code", text: `Rename the parameter sep to separator and give back the whole code:\n\n${CODE}` },
  { title: "Text to JSON", text: `Write these notes as a JSON list with the keys day, name, item, count, week:\n\n${NOTES}` },
  { title: "Something new", text: "Explain in five sentences why the sky is blue." },
];
