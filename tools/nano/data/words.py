"""Words that tasks are filled with."""

NAMES = (
    "Ada", "Adam", "Alan", "Alice", "Amir", "Anna", "Ben", "Bruno", "Carla", "Chen", "Clara", "Daniel", "David", "Dora",
    "Elena", "Emil", "Emma", "Eva", "Farid", "Felix", "Fiona", "Frank", "Grace", "Greta", "Hana", "Hugo", "Ida", "Igor",
    "Iris", "Ivan", "Jack", "Jana", "Jonas", "Julia", "Karl", "Kim", "Lara", "Laura", "Leo", "Lena", "Liam", "Linus",
    "Lucy", "Maria", "Mark", "Marta", "Max", "Mia", "Mona", "Nadia", "Nina", "Noah", "Nora", "Olga", "Oscar", "Otto",
    "Paul", "Pedro", "Petra", "Rosa", "Sam", "Sara", "Simon", "Sofia", "Tara", "Theo", "Tim", "Tom", "Uma", "Vera",
    "Victor", "Wanda", "Yara", "Yuki", "Zoe",
)  # fmt: skip
CITIES = (
    "Amsterdam", "Athens", "Basel", "Berlin", "Bern", "Boston", "Bremen", "Brussels", "Cairo", "Chicago", "Cologne",
    "Delhi", "Dresden", "Dublin", "Geneva", "Graz", "Hamburg", "Helsinki", "Kyoto", "Leipzig", "Lima", "Lisbon",
    "London", "Lyon", "Madrid", "Milan", "Munich", "Nairobi", "Naples", "Oslo", "Paris", "Porto", "Prague", "Quito",
    "Riga", "Rome", "Seoul", "Sofia", "Sydney", "Tokyo", "Toronto", "Turin", "Vienna", "Warsaw", "Zagreb", "Zurich",
)  # fmt: skip
COLOURS = (
    "amber", "black", "blue", "brown", "copper", "crimson", "golden", "green", "grey", "indigo", "orange", "pink",
    "purple", "red", "silver", "teal", "violet", "white", "yellow",
)  # fmt: skip
ADJECTIVES = (
    "broken", "bright", "calm", "clever", "cold", "distant", "dusty", "early", "empty", "famous", "gentle", "heavy",
    "hidden", "hollow", "large", "late", "little", "lonely", "narrow", "new", "noisy", "old", "open", "plain", "quick",
    "quiet", "round", "sharp", "shiny", "silent", "slow", "small", "soft", "square", "steady", "strong", "tall", "thin",
    "tiny", "warm", "wide", "wooden",
)  # fmt: skip
NOUNS = (
    "anchor", "apple", "arrow", "barrel", "basket", "bell", "bench", "boat", "book", "bottle", "bridge", "bucket",
    "cabin", "cable", "camera", "candle", "castle", "chair", "clock", "cloud", "coat", "coin", "crane", "desk", "door",
    "engine", "feather", "fence", "flag", "flute", "forest", "fountain", "garden", "gate", "glass", "hammer", "harbour",
    "island", "jacket", "kettle", "key", "ladder", "lake", "lamp", "lantern", "letter", "lighthouse", "map", "market",
    "mirror", "mountain", "needle", "notebook", "oven", "paper", "pencil", "piano", "pillow", "plate", "pocket",
    "printer", "puzzle", "radio", "ribbon", "river", "road", "robot", "roof", "rope", "sail", "shelf", "ship", "shoe",
    "spoon", "stone", "table", "tent", "tower", "train", "tree", "tunnel", "umbrella", "valley", "vase", "violin",
    "wagon", "wall", "watch", "wheel", "window",
)  # fmt: skip
VERBS = (
    "breaks", "brings", "builds", "buys", "carries", "cleans", "closes", "counts", "draws", "finds", "follows", "holds",
    "keeps", "likes", "loses", "mends", "moves", "needs", "opens", "paints", "plans", "sees", "sells", "sends", "shows",
    "takes", "wants", "watches",
)  # fmt: skip
THINGS = (
    "apples", "balls", "books", "bottles", "boxes", "cards", "chairs", "coins", "cups", "eggs", "flowers", "keys",
    "lamps", "letters", "marbles", "nails", "oranges", "pears", "pens", "photos", "plates", "shells", "stamps",
    "stickers", "stones", "tickets", "toys",
)  # fmt: skip
