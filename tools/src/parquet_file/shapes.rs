//! Which structs does Parquet's format have, and of what type are their fields?
//!
//! - All that the library reads field by field, for it does not look at their types: `parquet.thrift` has the rest.

use super::thrift::Kind::{Binary, Bool, Byte, Double, Int, List, Long, Short, Struct};
use super::thrift::{Kind, Shape};

const fn shape(name: &'static str, least: usize, fields: &'static [(i16, Kind)]) -> Shape {
    Shape {
        name,
        least,
        fields,
    }
}

/// The footer.
pub static FILE: Shape = shape(
    "FileMetaData",
    1,
    &[
        (1, Int),
        (2, List(&Struct(&ELEMENT))),
        (3, Long),
        (4, List(&Struct(&ROW_GROUP))),
        (5, List(&Struct(&KEY_VALUE))),
        (6, Binary),
        (7, List(&Struct(&COLUMN_ORDER))),
    ],
);

/// Of the schema, a column or a group of such.
pub static ELEMENT: Shape = shape(
    "SchemaElement",
    3,
    &[
        (1, Int),
        (2, Int),
        (3, Int),
        (4, Binary),
        (5, Int),
        (6, Int),
        (7, Int),
        (8, Int),
        (9, Int),
        (10, Struct(&LOGICAL)),
    ],
);
/// Fields of [`ELEMENT`].
pub const ELEMENT_NAME: i16 = 4;
/// As above: how many elements are in the group.
pub const ELEMENT_CHILDREN: i16 = 5;

static LOGICAL: Shape = shape(
    "LogicalType",
    3,
    &[
        (1, Struct(&EMPTY)),
        (2, Struct(&EMPTY)),
        (3, Struct(&EMPTY)),
        (4, Struct(&EMPTY)),
        (5, Struct(&DECIMAL)),
        (6, Struct(&EMPTY)),
        (7, Struct(&TIME)),
        (8, Struct(&TIME)),
        (10, Struct(&INTEGER)),
        (11, Struct(&EMPTY)),
        (12, Struct(&EMPTY)),
        (13, Struct(&EMPTY)),
        (14, Struct(&EMPTY)),
        (15, Struct(&EMPTY)),
        (16, Struct(&VARIANT)),
        (17, Struct(&GEOMETRY)),
        (18, Struct(&GEOMETRY)),
    ],
);
static EMPTY: Shape = shape("a type without fields", 1, &[]);
static DECIMAL: Shape = shape("DecimalType", 1, &[(1, Int), (2, Int)]);
static TIME: Shape = shape("TimeType", 1, &[(1, Bool), (2, Struct(&TIME_UNIT))]);
static TIME_UNIT: Shape = shape(
    "TimeUnit",
    3,
    &[
        (1, Struct(&EMPTY)),
        (2, Struct(&EMPTY)),
        (3, Struct(&EMPTY)),
    ],
);
static INTEGER: Shape = shape("IntType", 1, &[(1, Byte), (2, Bool)]);
static VARIANT: Shape = shape("VariantType", 1, &[(1, Byte)]);
static GEOMETRY: Shape = shape("GeographyType", 1, &[(1, Binary), (2, Int)]);

static ROW_GROUP: Shape = shape(
    "RowGroup",
    7,
    &[
        (1, List(&Struct(&COLUMN))),
        (2, Long),
        (3, Long),
        (4, List(&Struct(&SORTING))),
        (5, Long),
        (6, Long),
        (7, Short),
    ],
);
static SORTING: Shape = shape("SortingColumn", 5, &[(1, Int), (2, Bool), (3, Bool)]);
static COLUMN: Shape = shape(
    "ColumnChunk",
    3,
    &[
        (1, Binary),
        (2, Long),
        (3, Struct(&COLUMN_METADATA)),
        (4, Long),
        (5, Int),
        (6, Long),
        (7, Int),
    ],
);
static COLUMN_METADATA: Shape = shape(
    "ColumnMetaData",
    1,
    &[
        (1, Int),
        (2, List(&Int)),
        (3, List(&Binary)),
        (4, Int),
        (5, Long),
        (6, Long),
        (7, Long),
        (8, List(&Struct(&KEY_VALUE))),
        (9, Long),
        (10, Long),
        (11, Long),
        (12, Struct(&STATISTICS)),
        (13, List(&Struct(&ENCODING_STATS))),
        (14, Long),
        (15, Int),
        (16, Struct(&SIZES)),
        (17, Struct(&GEOSPATIAL)),
    ],
);
static KEY_VALUE: Shape = shape("KeyValue", 3, &[(1, Binary), (2, Binary)]);
static STATISTICS: Shape = shape(
    "Statistics",
    1,
    &[
        (1, Binary),
        (2, Binary),
        (3, Long),
        (4, Long),
        (5, Binary),
        (6, Binary),
        (7, Bool),
        (8, Bool),
        (9, Long),
    ],
);
static ENCODING_STATS: Shape = shape("PageEncodingStats", 7, &[(1, Int), (2, Int), (3, Int)]);
static SIZES: Shape = shape(
    "SizeStatistics",
    1,
    &[(1, Long), (2, List(&Long)), (3, List(&Long))],
);
static GEOSPATIAL: Shape = shape(
    "GeospatialStatistics",
    1,
    &[(1, Struct(&BOX)), (2, List(&Int))],
);
static BOX: Shape = shape(
    "BoundingBox",
    1,
    &[
        (1, Double),
        (2, Double),
        (3, Double),
        (4, Double),
        (5, Double),
        (6, Double),
        (7, Double),
        (8, Double),
    ],
);
static COLUMN_ORDER: Shape = shape(
    "ColumnOrder",
    3,
    &[(1, Struct(&EMPTY)), (2, Struct(&EMPTY))],
);

/// What stands before a page.
pub static PAGE: Shape = shape(
    "PageHeader",
    1,
    &[
        (1, Int),
        (2, Int),
        (3, Int),
        (4, Int),
        (5, Struct(&DATA)),
        (6, Struct(&EMPTY)),
        (7, Struct(&DICTIONARY)),
        (8, Struct(&DATA_V2)),
    ],
);
/// In [`PAGE`], a page of the first version.
pub static DATA: Shape = shape(
    "DataPageHeader",
    1,
    &[
        (1, Int),
        (2, Int),
        (3, Int),
        (4, Int),
        (5, Struct(&STATISTICS)),
    ],
);
/// In [`PAGE`], a dictionary.
pub static DICTIONARY: Shape = shape("DictionaryPageHeader", 1, &[(1, Int), (2, Int), (3, Bool)]);
/// In [`PAGE`], a page of the second version.
pub static DATA_V2: Shape = shape(
    "DataPageHeaderV2",
    1,
    &[
        (1, Int),
        (2, Int),
        (3, Int),
        (4, Int),
        (5, Int),
        (6, Int),
        (7, Bool),
        (8, Struct(&STATISTICS)),
    ],
);
