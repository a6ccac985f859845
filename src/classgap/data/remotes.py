"""Where the published data sets are downloaded from, with the digests that their authors, torchvision or Git state."""

from __future__ import annotations

from classgap.data.downloads import Remote

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_PLACES = "http://data.csail.mit.edu/places/places365"
_LISTS = "https://raw.githubusercontent.com/facebookresearch/classifier-balancing/main/data"


def _archive(url: str, folder: str, md5: str = "") -> Remote:
    return Remote(url, folder, f"md5:{md5}" if md5 else "", unpack=True)


def _idx(base: str, folder: str, *digests: str) -> tuple[Remote, ...]:
    return tuple(
        Remote(f"{base}/{file}.gz", folder, f"md5:{md5}") for file, md5 in zip(IDX_FILES, digests, strict=True)
    )


def _lists(name: str, folder: str, **digests: str) -> tuple[Remote, ...]:
    """List files, verified by the names that Git has for their content."""
    return tuple(Remote(f"{_LISTS}/{name}/{name}_{part}.txt", folder, f"git:{sha}") for part, sha in digests.items())


MNIST = _idx(
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "MNIST/raw",
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_MNIST = _idx(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "FashionMNIST/raw",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
CIFAR10 = (_archive(f"{_CIFAR}/cifar-10-python.tar.gz", "", "c58f30108f718f92721af3b95e74349a"),)
CIFAR100 = (_archive(f"{_CIFAR}/cifar-100-python.tar.gz", "", "eb9058c3a382ffc7106e4002c42a8d85"),)
OXFORD_PETS = (
    _archive(f"{_OXFORD}/pets/data/images.tar.gz", "oxford-iiit-pet", "5c4f3ee8e5d25df40f4fd59a7f44e54c"),
    _archive(f"{_OXFORD}/pets/data/annotations.tar.gz", "oxford-iiit-pet", "95a8c909bbe2e81eed6a22bccdf3f68f"),
)
FLOWERS102 = (
    _archive(f"{_OXFORD}/flowers/102/102flowers.tgz", "flowers-102", "52808999861908f626f3c1f4e79d11fa"),
    Remote(f"{_OXFORD}/flowers/102/imagelabels.mat", "flowers-102", "md5:e0620be6f572b9609742df49c70aed4d"),
    Remote(f"{_OXFORD}/flowers/102/setid.mat", "flowers-102", "md5:a5357ecc9cb78c4bef273ce3793fc85c"),
)
FOOD101 = (_archive("http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz", "", "85eeb15f3717b99a5da872d97d918f87"),)
FGVC_AIRCRAFT = (_archive(f"{_OXFORD}/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz", ""),)
IMAGENET_LT = _lists(
    "ImageNet_LT",
    "imagenet_lt",
    train="a063f095fcd475db4cf8b0658c4b73955535bbf9",
    val="3ed3188b2f44829ce2dec1cc27040d8d40984088",
    test="76a2fb9749d6cd29e765cc4f8c270f2504131e2f",
)
INAT18 = (
    *_lists(
        "iNaturalist18",
        "inat18",
        train="4accdb7584d2f0a5106c40a33ed6afa392189bcc",
        val="4c23900857fd0f5adcd4cc0dffef345039eeb05f",
    ),
    _archive(
        "https://ml-inat-competition-datasets.s3.amazonaws.com/2018/train_val2018.tar.gz",
        "inat18",
        "b1c6952ce38f31868cc50ea72d066cc3",
    ),
)
_PLACES_IMAGES = (
    _archive(f"{_PLACES}/train_256_places365standard.tar", "places365", "53ca1c756c3d1e7809517cc47c5561c5"),
    _archive(f"{_PLACES}/val_256.tar", "places365", "e27b17d8d44f4af9a78502beb927f808"),
)
PLACES365 = (
    _archive(f"{_PLACES}/filelist_places365-standard.tar", "places365", "35a0585fee1fa656440f3ab298f8479c"),
    *_PLACES_IMAGES,
)
PLACES_LT = (
    *_lists(
        "Places_LT",
        "places_lt",
        train="6392252f8ae867bc8a5e841cc1b29e5b8ef4b636",
        val="b93a2ca58ccb7f3b671c176f395a70bf52c95533",
        test="e732e58b8aa718a2c1c11933375f5710652c2b93",
    ),
    *_PLACES_IMAGES,
)
